#include "data/shards/record_line.h"

#include <array>
#include <cstring>
#include <utility>

#include "base/json.h"

namespace specdec::data {

namespace {

// True for the bytes that must be escaped in JSON strings.
constexpr std::array<bool, 256> kEscaped = [] {
  std::array<bool, 256> is{};
  for (size_t c = 0; c < 0x20; ++c) is[c] = true;
  is['"'] = is['\\'] = true;
  return is;
}();

// Returns true if none of the eight bytes must be escaped (byte tricks of "Bit Twiddling Hacks", S. E. Anderson).
bool eight_are_plain(const char* text) {
  constexpr uint64_t kOnes = 0x0101010101010101ull, kHigh = 0x8080808080808080ull;
  uint64_t word;
  std::memcpy(&word, text, 8);
  const auto has_zero = [](uint64_t x) { return (x - kOnes) & ~x & kHigh; };
  const uint64_t control = (word - kOnes * 0x20) & ~word & kHigh;
  return (control | has_zero(word ^ (kOnes * '"')) | has_zero(word ^ (kOnes * '\\'))) == 0;
}

void append_string(std::string_view text, std::string& out) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  size_t copied = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    while (i + 8 <= text.size() && eight_are_plain(text.data() + i)) i += 8;
    if (i == text.size()) break;
    const auto c = static_cast<unsigned char>(text[i]);
    if (!kEscaped[c]) continue;
    out.append(text.substr(copied, i - copied));
    copied = i + 1;
    out += '\\';
    if (c == '"' || c == '\\')
      out += static_cast<char>(c);
    else if (c == '\n')
      out += 'n';
    else if (c == '\t')
      out += 't';
    else if (c == '\r')
      out += 'r';
    else if (c == '\b')
      out += 'b';
    else if (c == '\f')
      out += 'f';
    else
      out.append("u00").append(1, kHex[c >> 4]).append(1, kHex[c & 15]);
  }
  out.append(text.substr(copied)).push_back('"');
}

void append_field(std::string_view name, std::string_view value, std::string& out) {
  out.append(out.size() > 1 ? ",\"" : "\"").append(name).append("\":");
  append_string(value, out);
}

void append_messages_field(const std::vector<ChatMessage>& messages, std::string& out) {
  out += ",\"messages\":[";
  for (size_t i = 0; i < messages.size(); ++i) {
    out += i ? ",{\"content\":" : "{\"content\":";
    append_string(messages[i].content, out);
    for (const auto& [key, text] :
         {std::pair("name", &messages[i].name), std::pair("reasoning_content", &messages[i].reasoning_content),
          std::pair("role", &messages[i].role), std::pair("tool_call_id", &messages[i].tool_call_id),
          std::pair("tool_calls", &messages[i].tool_calls)})
      if (!text->empty()) append_field(key, *text, out);
    if (messages[i].unlearnt) out += ",\"weight\":0";
    out += '}';
  }
  out += ']';
}

void append_ids_field(std::string_view name, const std::vector<int32_t>& ids, std::string& out) {
  if (ids.empty()) return;
  out.append(",\"").append(name).append("\":");
  char separator = '[';
  for (const int32_t id : ids) {
    out += std::exchange(separator, ',');
    out += std::to_string(id);
  }
  out += ']';
}

}  // namespace

void write_record_line(const TrafficRecord& record, const RecordOrigin& origin, std::string& out) {
  const bool chat = !record.messages.empty(), text = !chat && !record.text.empty(), pair = !chat && !text;
  out = "{";
  append_field("conversation", record.conversation, out);
  append_field("domain", record.domain, out);
  if (!record.finish_reason.empty()) append_field("finish_reason", record.finish_reason, out);
  append_field("id", record.id, out);
  if (chat) append_messages_field(record.messages, out);
  if (pair) append_field("prompt", record.prompt, out);
  append_ids_field("prompt_token_ids", record.prompt_token_ids, out);
  if (origin.redactions && !origin.redactions->empty())
    out.append(",\"redactions\":").append(Json(*origin.redactions).dump());
  if (pair) append_field("response", record.response, out);
  if (record.sampling) {
    const SamplingOptions& s = *record.sampling;
    out.append(",\"sampling\":{\"min_p\":")
        .append(Json(s.min_p).dump())
        .append(",\"temperature\":")
        .append(Json(s.temperature).dump());
    out.append(",\"top_k\":")
        .append(std::to_string(s.top_k))
        .append(",\"top_p\":")
        .append(Json(s.top_p).dump())
        .push_back('}');
  }
  append_field("schema", "specdec.traffic/" + std::to_string(TrafficRecord::kVersion), out);
  out += ",\"source\":{\"file\":";
  append_string(origin.file, out);
  out += ",\"format\":";
  append_string(origin.format, out);
  out.append(",\"line\":").append(std::to_string(origin.line)).push_back('}');
  if (chat && !record.template_kwargs.empty()) append_field("template_kwargs", record.template_kwargs, out);
  if (!origin.tenant.empty()) append_field("tenant", origin.tenant, out);
  if (text) append_field("text", record.text, out);
  out.append(",\"time\":").append(std::to_string(record.time));
  append_ids_field("token_ids", record.token_ids, out);
  if (chat && !record.tools.empty()) append_field("tools", record.tools, out);
  append_field("writer", record.writer, out);
  out += '}';
}

}  // namespace specdec::data
