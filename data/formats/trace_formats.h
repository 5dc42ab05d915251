// Exports of tracing systems: Langfuse and OpenTelemetry's GenAI conventions.
#pragma once

#include "data/formats/row_parser.h"

namespace specdec::data {

// A Langfuse observation of the blob export (snake_case) or the API (camelCase). Only observations of type GENERATION
// become records; others are refused (other_event). Input and output may be JSON in strings. The conversation is the
// session, else the trace; the tenant is the user.
bool is_langfuse(const Json& row);
void parse_langfuse(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);

// OpenTelemetry GenAI: one span or event with attributes (a map or OTLP's key-value list), or a line of OTLP JSON
// (resourceSpans or resourceLogs) with any number of them. Content is found in gen_ai.input.messages,
// gen_ai.output.messages and gen_ai.system_instructions, in the gen_ai.prompt and gen_ai.completion attributes and
// events of conventions up to 1.36, or in OpenLLMetry's gen_ai.prompt.0.content. The conversation is
// gen_ai.conversation.id or session.id, else the trace; the tenant is tenant.id, user.id or enduser.id.
bool is_otel(const Json& row);
void parse_otel(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);

}  // namespace specdec::data
