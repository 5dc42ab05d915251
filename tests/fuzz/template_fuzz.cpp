// Fuzzes chat templates from untrusted sources. Each template is compiled and rendered in a confined process, as the
// server does. The input is the template up to a line of "====", then a JSON array of messages. Whatever a template
// does, the rendered text must be within its bounds, and the next rendering must succeed.
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "base/confined_service.h"
#include "base/error.h"
#include "base/json.h"
#include "text/chat_template.h"

namespace {

using namespace specdec;

constexpr char kBetween[] = "\n====\n";
constexpr ChildLimits kLimits{512u << 20, 2, 8};

std::vector<ChatMessage> messages_of(const std::string& text) {
  std::vector<ChatMessage> messages;
  const Json list = text.empty() ? Json::array() : parse_json(text, "messages");
  for (const Json& m : list.is_array() ? list : Json::array())
    if (m.is_object())
      messages.push_back({json_string(m, "role", "user", "message", ErrorKind::kData),
                          json_string(m, "content", "", "message", ErrorKind::kData)});
  if (messages.empty()) messages.push_back({"user", "hello"});
  return messages;
}

// Renders a template in the confined process. Returns 'k' and the text, or 'e' and the error.
std::string render(std::string_view job) {
  try {
    const size_t at = job.find(kBetween);
    const text::ChatTemplate chat(std::string(job.substr(0, at)), "<s>", "</s>");
    return "k" + chat.render(
                     messages_of(at == std::string_view::npos ? "" : std::string(job.substr(at + sizeof kBetween - 1))),
                     true);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kInternal) std::abort();  // libFuzzer must report a panic of the Rust code
    return "e" + std::string(e.what());
  }
}

}  // namespace

std::vector<std::string> fuzz_seeds() {
  return {
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}{% endfor %}{% if add_generation_prompt "
      "%}<|assistant|>{% endif %}\n====\n[{\"role\":\"user\",\"content\":\" a \"}]",
      "{% if messages|length > 2 %}{% set s = 'a' %}{% for i in range(60) %}{% set s = s ~ s %}{% endfor %}{% endif "
      "%}{{ bos_token }}",
      "{% macro f(x) %}{{ x.split(',')[0] | upper }}{% endmacro %}{{ f(messages[0].content) }}{{ messages | "
      "tojson(indent=2) }}{{ raise_exception('no') }}",
      "{% set ns = namespace(n=0) %}{% for m in messages if m.role == 'user' %}{% set ns.n = ns.n + 1 %}{{ loop.index "
      "}}{% else %}none{% endfor %}{{ ns.n * 'x' }}",
      "{{ strftime_now('%Y') }}{{ messages[0]['content'].replace('a', 'bb') | join(', ') }}{{ (1, 2.5, none) | list | "
      "string }}{{ messages[::-1][0].role.title() }}"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ConfinedService service(kLimits, 1, render);
  const std::optional<std::string> answer = service.ask({reinterpret_cast<const char*>(data), size});
  if (answer && answer->size() > (1u << 20) + 8 * size + 1 && answer->front() == 'k') std::abort();
  if (answer && answer->front() == 'e' && answer->find('\n') != std::string::npos) std::abort();
  if (service.ask("{{ messages[0].content }}") != "khello") std::abort();
  return 0;
}
