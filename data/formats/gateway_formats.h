// Logs of gateways and servers: OpenAI request and response bodies with metadata around them.
#pragma once

#include "data/formats/row_parser.h"

namespace specdec::data {

// OpenAI Batch. Input rows are {custom_id, method, url, body}; output rows are {id, custom_id, response: {status_code,
// body}, error}; some providers leave out method and url. Each row is half of a record.
bool is_batch(const Json& row);
void parse_batch(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);
ParsedRecord join_batch(const Json& request, const Json& response);

// LiteLLM's StandardLoggingPayload, one row per call. The tenant is the key's team, else the end user.
bool is_litellm(const Json& row);
void parse_litellm(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);

// Helicone's export {request_id, request_body, response_body, request_user_id, …}, or {request: {body}, response:
// {body}}.
bool is_helicone(const Json& row);
void parse_helicone(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);

// Portkey's log export: {id, trace_id, created_at, request, response, ai_model, …} with the bodies as objects or as
// JSON in strings, or its log object {request: {url, body}, response: {status, body}, metadata}.
bool is_portkey(const Json& row);
void parse_portkey(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);

// Files of SGLang's --export-metrics-to-file: {request_parameters: JSON in a string, …meta_info}. SGLang does not write
// the answer to these files, so such rows are refused (no_answer). Rows to which a deployment has added the answer
// (text, output_text or out: {text}) are accepted.
bool is_sglang(const Json& row);
void parse_sglang(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);

// The bodies of a request and of its response, {request: {messages | prompt | input, …}, response: {choices | output,
// …}}, each an object or JSON in a string, with metadata of any name around them.
bool is_exchange(const Json& row);
void parse_exchange(const Json& row, const RowOptions& options, std::vector<ParsedRow>& out);

}  // namespace specdec::data
