#include "deploy/serve/answer/reply.h"

#include <algorithm>
#include <map>

#include "base/format.h"
#include "base/json.h"
#include "base/sha256.h"

namespace specdec::deploy {

namespace {

// Tokens may have bytes that are not UTF-8. They are replaced, so that dump() does not throw.
std::string dump(const Json& body) { return body.dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string event(const Json& body) { return "data: " + dump(body) + "\n\n"; }
Json or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }

Json frame_json(const ReplyFrame& frame, bool chunk) {
  const bool chat = frame.endpoint == Endpoint::kChat;
  return {{"id", frame.id},
          {"object", chat ? (chunk ? "chat.completion.chunk" : "chat.completion") : "text_completion"},
          {"created", frame.created},
          {"model", frame.model},
          {"system_fingerprint", or_null(frame.system_fingerprint)},
          {"choices", Json::array()}};
}

// Returns whether the text can be put into a JSON string without escapes.
bool is_plain(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f && c != '"' && c != '\\'; });
}

std::string quoted(const std::string& text) { return is_plain(text) ? '"' + text + '"' : dump(Json(text)); }

// Returns the token's text. A token that is not whole UTF-8 characters cannot be in a JSON string, so its bytes are
// spelled out ("bytes:\xe2\x80"), as in OpenAI's older API. Different tokens thus get different texts.
std::string token_text(const std::string& bytes) {
  if (is_plain(bytes)) return bytes;
  const std::string valid = Json(bytes).dump(-1, ' ', false, Json::error_handler_t::ignore);
  if (valid == Json(bytes).dump(-1, ' ', false, Json::error_handler_t::replace)) return bytes;
  std::string text = "bytes:";
  for (const unsigned char c : bytes) text += format("\\x%02x", static_cast<unsigned>(c));
  return text;
}

// Replaces minus infinity, which JSON does not have, by -9999. vLLM and OpenAI also return this value for a token of
// probability zero.
float finite(float logprob) { return std::max(logprob, -9999.f); }

std::string number(float logprob) { return dump(Json(finite(logprob))); }

// Writes the object of a token as JSON text. A request may ask for a million tokens, so no JSON values are built first.
std::string chat_token(const std::string& bytes, float logprob) {
  std::string list;
  for (const char c : bytes) list.append(list.empty() ? "" : ",").append(std::to_string(static_cast<unsigned char>(c)));
  return "\"bytes\":[" + list + "],\"logprob\":" + number(logprob) + ",\"token\":" + quoted(token_text(bytes));
}

// Writes an object that maps the texts of the likeliest tokens and of the drawn token to their log-probabilities. If
// two tokens have the same text, the likelier token is kept.
std::string completion_top(const TokenEntry& entry) {
  std::map<std::string, float> by_text;
  for (const auto& [bytes, logprob] : entry.top) by_text.emplace(token_text(bytes), logprob);
  by_text.emplace(token_text(entry.bytes), *entry.logprob);
  std::string members;
  for (const auto& [text, logprob] : by_text)
    members.append(members.empty() ? "" : ",").append(quoted(text)).append(":").append(number(logprob));
  return "{" + members + "}";
}

// Replaces the null value of a key. In dumped JSON all quotes within strings are escaped, so only the key can match.
void put(std::string& dumped, const std::string& key, const std::string& value) {
  const std::string empty = "\"" + key + "\":null";
  dumped.replace(dumped.find(empty), empty.size(), "\"" + key + "\":" + value);
}

std::string logprobs_text(const ReplyFrame& frame, const Answer& piece) {
  LogprobsText text;
  text.add(frame, piece.logprobs);
  return text.text(frame);
}

Json usage_json(const ReplyFrame& frame, const std::vector<Answer>& answers) {
  int64_t completion = 0;
  for (const Answer& answer : answers)
    if (answer.result) completion += answer.result->completion_tokens;
  return {{"prompt_tokens", frame.prompt_tokens},
          {"completion_tokens", completion},
          {"total_tokens", frame.prompt_tokens + completion}};
}

// Returns the speculation figures of a reply that has a single answer. A reply with several answers gets null instead
// of figures, as in vLLM.
Json metrics_json(const std::vector<Answer>& answers) {
  if (answers.size() != 1 || !answers[0].result) return {{"speculative_decoding", nullptr}};
  const ChoiceResult& r = *answers[0].result;
  const AcceptanceCounts& c = r.counts;
  std::vector<int64_t> histogram = r.accepted_histogram;
  if (histogram.empty()) histogram.push_back(0);
  return {{"speculative_decoding",
           {{"mean_acceptance_length", c.steps > 0 ? c.length() : 1.0},
            {"draft_acceptance_rate", c.drafted > 0 ? c.draft_efficiency() : 0.0},
            {"acceptance_histogram", histogram},
            {"num_spec_steps", c.steps},
            {"num_accepted_draft_tokens", c.accepted},
            {"num_draft_tokens", c.drafted},
            {"num_spec_tokens", histogram.size() - 1}}}};
}

std::string chunk(const ReplyFrame& frame, Json choice, const std::string& logprobs = "null") {
  Json body = frame_json(frame, true);
  body["choices"].push_back(std::move(choice));
  if (frame.include_usage) body["usage"] = nullptr;
  std::string text = event(body);
  put(text, "logprobs", logprobs);
  return text;
}

// Names a call by the request, the answer and the call's index in the answer, so that the names of all calls in a
// conversation differ.
std::string call_id(const ReplyFrame& frame, size_t choice, size_t index) {
  const std::string name = frame.id + "-" + std::to_string(choice) + "-" + std::to_string(index);
  if (!frame.short_call_ids) return "call_" + name.substr(name.find('-') + 1);
  return sha256_hex(name).substr(0, 9);
}

// Returns a call as an element of tool_calls: of a message, or of a stream's delta. Later pieces of a streamed call
// have no name.
Json call_json(const ReplyFrame& frame, size_t choice, const CallPiece& call) {
  Json out = {{"function", {{"arguments", call.arguments}}}};
  if (call.name.empty()) return out;
  out["id"] = call_id(frame, choice, call.index);
  out["type"] = "function";
  out["function"]["name"] = call.name;
  return out;
}

const char* finish_reason(FinishReason reason, bool calls) {
  return calls && reason == FinishReason::kStop ? "tool_calls" : to_string(reason);
}

Json message_json(const ReplyFrame& frame, size_t choice, const AnswerPiece& text) {
  Json message = {{"role", "assistant"}, {"content", text.content}, {"refusal", nullptr}};
  if (!text.reasoning.empty()) message["reasoning_content"] = text.reasoning;
  if (text.calls.empty()) return message;
  if (text.content.empty()) message["content"] = nullptr;
  for (const CallPiece& call : text.calls) message["tool_calls"].push_back(call_json(frame, choice, call));
  return message;
}

Json delta_json(const ReplyFrame& frame, size_t choice, const AnswerPiece& text) {
  Json delta = Json::object();
  if (!text.content.empty() || (text.reasoning.empty() && text.calls.empty())) delta["content"] = text.content;
  if (!text.reasoning.empty()) delta["reasoning_content"] = text.reasoning;
  for (const CallPiece& call : text.calls) {
    Json item = call_json(frame, choice, call);
    item["index"] = call.index;
    delta["tool_calls"].push_back(std::move(item));
  }
  return delta;
}

Json chunk_choice(const ReplyFrame& frame, size_t choice) {
  Json out = {{"index", choice}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (frame.endpoint == Endpoint::kChat)
    out["delta"] = Json::object();
  else
    out["text"] = "";
  return out;
}

Json model_json(const ModelCard& card, const std::string& name) {
  return {{"id", name},
          {"object", "model"},
          {"created", card.created},
          {"owned_by", "specdec"},
          {"root", card.names.front()},
          {"parent", nullptr},
          {"max_model_len", card.max_context},
          {"specdec",
           {{"target", or_null(card.target)}, {"draft", or_null(card.draft)}, {"package", or_null(card.package)}}}};
}

}  // namespace

size_t characters(std::string_view bytes) {
  return static_cast<size_t>(std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

// Adds tokens to the lists. In completions, the list of top tokens always includes the drawn token, as in OpenAI's
// replies.
void LogprobsText::add(const ReplyFrame& frame, const std::vector<TokenEntry>& entries) {
  for (const TokenEntry& entry : entries) {
    const char* const comma = tokens_.empty() ? "" : ",";
    if (frame.endpoint == Endpoint::kChat) {
      tokens_ += comma + ("{" + chat_token(entry.bytes, entry.logprob.value_or(0))) + ",\"top_logprobs\":[";
      for (size_t i = 0; i < entry.top.size(); ++i)
        tokens_ += (i > 0 ? ",{" : "{") + chat_token(entry.top[i].first, entry.top[i].second) + "}";
      tokens_ += "]}";
      continue;
    }
    tokens_ += comma + quoted(token_text(entry.bytes));
    logprobs_ += comma + (entry.logprob ? number(*entry.logprob) : "null");
    offsets_ += comma + std::to_string(entry.offset);
    if (frame.logprobs == 0) continue;
    top_ += comma + (entry.logprob ? completion_top(entry) : "null");
  }
}

std::string LogprobsText::text(const ReplyFrame& frame) const {
  if (frame.endpoint == Endpoint::kChat) return "{\"content\":[" + tokens_ + "],\"refusal\":null}";
  return "{\"text_offset\":[" + offsets_ + "],\"token_logprobs\":[" + logprobs_ + "],\"tokens\":[" + tokens_ +
         "],\"top_logprobs\":" + (frame.logprobs > 0 ? "[" + top_ + "]" : "null") + "}";
}

std::string full_reply(const ReplyFrame& frame, std::vector<Answer> answers) {
  Json body = frame_json(frame, false);
  body["usage"] = usage_json(frame, answers);
  if (frame.include_metrics) body["metrics"] = metrics_json(answers);
  const std::string around = dump(body);
  const size_t place = around.find("\"choices\":[]") + 11;
  size_t bytes = around.size();
  for (const Answer& answer : answers) bytes += answer.written.bytes() + answer.text.bytes() + kReplyBytesPerAnswer;
  std::string reply;
  reply.reserve(bytes + bytes / 8);
  reply.append(around, 0, place);
  for (size_t i = 0; i < answers.size(); ++i) {
    Answer answer = std::move(answers[i]);  // freed once it is written
    Json choice = {{"index", i},
                   {"logprobs", nullptr},
                   {"finish_reason", finish_reason(answer.result->reason, !answer.text.calls.empty())}};
    if (frame.endpoint == Endpoint::kChat)
      choice["message"] = message_json(frame, i, answer.text);
    else
      choice["text"] = answer.text.content;
    if (frame.return_token_ids) choice["token_ids"] = answer.token_ids;
    std::string text = dump(choice);
    answer.written.add(frame, answer.logprobs);
    if (frame.logprobs >= 0) put(text, "logprobs", answer.written.text(frame));
    if (i > 0) reply += ',';
    reply += text;
  }
  return reply.append(around, place);
}

size_t reply_bytes_per_token(const ReplyFrame& frame) {
  constexpr size_t kText = 8, kId = 8;
  const size_t scored = frame.logprobs < 0 ? 0 : static_cast<size_t>(frame.logprobs) + 1;
  const size_t logprobs = frame.endpoint == Endpoint::kChat ? 100 * scored : 32 * scored + (scored > 0 ? 32 : 0);
  return kText + (frame.return_token_ids ? kId : 0) + logprobs;
}

std::string first_event(const ReplyFrame& frame, size_t choice) {
  if (frame.endpoint != Endpoint::kChat) return {};
  Json out = chunk_choice(frame, choice);
  out["delta"] = {{"role", "assistant"}, {"content", ""}};
  return chunk(frame, std::move(out));
}

std::string delta_event(const ReplyFrame& frame, size_t choice, const Answer& piece) {
  if (piece.text.bytes() == 0 && piece.logprobs.empty() && !(frame.return_token_ids && !piece.token_ids.empty()))
    return {};
  Json out = chunk_choice(frame, choice);
  if (frame.endpoint == Endpoint::kChat)
    out["delta"] = delta_json(frame, choice, piece.text);
  else
    out["text"] = piece.text.content;
  if (frame.return_token_ids) out["token_ids"] = piece.token_ids;
  return chunk(frame, std::move(out),
               piece.logprobs.empty() || frame.logprobs < 0 ? "null" : logprobs_text(frame, piece));
}

std::string finish_event(const ReplyFrame& frame, size_t choice, FinishReason reason, bool calls) {
  Json out = chunk_choice(frame, choice);
  out["finish_reason"] = finish_reason(reason, calls);
  return chunk(frame, std::move(out));
}

std::string usage_event(const ReplyFrame& frame, const std::vector<Answer>& answers) {
  if (!frame.include_usage && !frame.include_metrics) return {};
  Json body = frame_json(frame, true);
  if (frame.include_usage) body["usage"] = usage_json(frame, answers);
  if (frame.include_metrics) body["metrics"] = metrics_json(answers);
  return event(body);
}

std::string error_event(const ApiError& error, const std::string& request_id) {
  return "data: " + error_body(error, request_id) + "\n\n";
}

std::string done_event() { return "data: [DONE]\n\n"; }

std::string model_list(const ModelCard& card) {
  Json models = Json::array();
  for (const std::string& name : card.names) models.push_back(model_json(card, name));
  return dump({{"object", "list"}, {"data", models}});
}

std::string model_object(const ModelCard& card, const std::string& name) { return dump(model_json(card, name)); }

}  // namespace specdec::deploy
