#include "deploy/serve/request/unsupported_fields.h"

#include <algorithm>

#include "deploy/serve/request/request_fields.h"

namespace specdec::deploy {

namespace {

using enum Endpoint;

std::vector<UnsupportedField> make_table() {
  const Json none = Json::object(), empty = Json::array();
  return {
      // Fields for search and scoring
      {.name = "best_of", .or_n = true},
      {.name = "use_beam_search", .defaults = {false}},
      {.name = "length_penalty", .defaults = {1}},
      {.name = "early_stopping", .defaults = {false}},
      {.name = "prompt_logprobs"},
      {.name = "logprob_token_ids", .defaults = {empty}},
      {.name = "logits_processors", .defaults = {empty}},
      {.name = "repetition_detection"},
      {.name = "thinking_token_budget", .defaults = {-1}},
      // Fields for grammars
      {.name = "guided_grammar", .defaults = {none}},
      {.name = "guided_whitespace_pattern", .defaults = {""}},
      {.name = "structured_outputs.whitespace_pattern", .defaults = {""}},
      {.name = "structured_outputs.disable_any_whitespace", .defaults = {false}},
      {.name = "structured_outputs.disable_additional_properties", .defaults = {false}},
      {.name = "structural_tag"},
      {.name = "grammar", .defaults = {""}},
      {.name = "ebnf", .defaults = {""}},
      {.name = "regex", .defaults = {""}},
      {.name = "json_schema", .defaults = {none, ""}},
      // Fields about the answer's text. spaces_between_special_tokens is not among them: the text never contains
      // special tokens, so that field has no effect.
      {.name = "skip_special_tokens", .defaults = {true}},
      {.name = "detokenize", .defaults = {true}},
      {.name = "suffix", .only = kCompletions, .defaults = {""}},
      {.name = "stream_options.continuous_usage_stats", .defaults = {false}},
      // Fields about the prompt
      {.name = "truncation_side", .defaults = {"left"}},
      {.name = "prompt_embeds", .only = kCompletions, .defaults = {empty}},
      {.name = "add_special_tokens", .only = kCompletions, .defaults = {true}},
      {.name = "add_special_tokens", .only = kChat, .defaults = {false}},
      {.name = "add_generation_prompt", .only = kChat, .defaults = {true}},
      {.name = "continue_final_message", .only = kChat, .defaults = {false}, .in_prompt = true},
      {.name = "echo", .only = kChat, .defaults = {false}},
      {.name = "documents", .only = kChat, .defaults = {empty}, .in_prompt = true},
      {.name = "chat_template", .defaults = {none}, .in_prompt = true},
      {.name = "chat_template_kwargs", .only = kCompletions, .defaults = {none}},
      // Fields for media, web search and the older form of tools
      {.name = "mm_processor_kwargs", .defaults = {none}, .in_prompt = true},
      {.name = "media_io_kwargs", .defaults = {none}, .in_prompt = true},
      {.name = "allowed_local_media_path", .defaults = {""}},
      {.name = "audio", .only = kChat},
      {.name = "modalities", .only = kChat, .defaults = {Json::array({"text"})}},
      {.name = "prediction", .only = kChat},
      {.name = "web_search_options", .only = kChat},
      {.name = "functions", .only = kChat, .defaults = {empty}, .in_prompt = true},
      {.name = "function_call", .only = kChat, .defaults = {"none", "auto"}},
      {.name = "tools", .only = kCompletions, .defaults = {empty}},
      {.name = "tool_choice", .only = kCompletions, .defaults = {"none", "auto"}},
      // Fields that choose an adapter, priority or KV cache for the request
      {.name = "lora"},
      {.name = "lora_request"},
      {.name = "lora_path"},
      {.name = "priority", .defaults = {0}},
      {.name = "cache_salt", .defaults = {""}},
      {.name = "kv_transfer_params", .defaults = {none}},
      {.name = "ec_transfer_params", .defaults = {none}},
      {.name = "vllm_xargs", .defaults = {none}},
  };
}

// Returns the value of a field of the table, or null if the body does not contain it.
const Json* value_of(const Json& body, const std::string& name) {
  const size_t dot = name.find('.');
  if (dot == std::string::npos) return find_field(body, name.c_str());
  const Json* parent = find_field(body, name.substr(0, dot).c_str());
  return parent && parent->is_object() ? find_field(*parent, name.substr(dot + 1).c_str()) : nullptr;
}

// Refuses the field if the body contains it with a value other than its defaults. If `n` is not null, a value equal to
// `n` (the request's number of answers) is accepted, too.
void refuse_field(const Json& body, const UnsupportedField& field, Endpoint endpoint, const Json& n) {
  if (field.only.value_or(endpoint) != endpoint) return;
  const Json* value = value_of(body, field.name);
  if (!value || (field.or_n && *value == n)) return;
  if (std::find(field.defaults.begin(), field.defaults.end(), *value) == field.defaults.end()) refuse(field.name);
}

}  // namespace

std::span<const UnsupportedField> unsupported_fields() {
  static const std::vector<UnsupportedField> table = make_table();
  return table;
}

void refuse_unsupported(const Json& body, Endpoint endpoint, int64_t n) {
  for (const UnsupportedField& field : unsupported_fields()) refuse_field(body, field, endpoint, n);
}

void refuse_unsupported_in_prompt(const Json& body, Endpoint endpoint) {
  for (const UnsupportedField& field : unsupported_fields())
    if (field.in_prompt) refuse_field(body, field, endpoint, nullptr);
}

}  // namespace specdec::deploy
