#include "data/select/domain_rules.h"

#include <re2/re2.h>

#include "base/file.h"

namespace specdec::data {

namespace {

constexpr size_t kMaxRuleFileBytes = 1 << 20;
constexpr size_t kMaxDomainBytes = 128;
constexpr int64_t kPatternMemoryBytes = 8 << 20;

using Part = std::string (*)(const TrafficRecord&);

std::string all_content(const TrafficRecord& r) {
  std::string text = r.prompt + "\n" + r.response + r.text;
  for (const ChatMessage& m : r.messages) text += m.content + "\n";
  return text;
}
std::string system_content(const TrafficRecord& r) {
  std::string text;
  for (const ChatMessage& m : r.messages)
    if (m.role == "system" || m.role == "developer") text += m.content + "\n";
  return text;
}
// Returns the user messages between the last two answers, which are the prompt of the last answer.
std::string prompt_content(const TrafficRecord& r) {
  if (r.messages.empty()) return r.prompt;
  std::string text;
  for (size_t i = r.messages.size() - 1; i > 0 && r.messages[i - 1].role != "assistant"; --i)
    if (r.messages[i - 1].role == "user") text = r.messages[i - 1].content + "\n" + text;
  return text;
}
std::string answer_content(const TrafficRecord& r) {
  return r.messages.empty() ? r.response + r.text : r.messages.back().content;
}
std::string model_name(const TrafficRecord& r) { return r.writer; }

Part part_named(const std::string& name) {
  if (name == "any") return all_content;
  if (name == "system") return system_content;
  if (name == "prompt") return prompt_content;
  if (name == "answer") return answer_content;
  return name == "model" ? model_name : nullptr;
}

std::string_view stripped(std::string_view s) {
  const size_t begin = s.find_first_not_of(" \t\r");
  return begin == std::string_view::npos ? std::string_view{}
                                         : s.substr(begin, s.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

struct DomainRules::Rule {
  std::string domain;
  Part part;
  std::unique_ptr<RE2> pattern;
};

DomainRules::DomainRules(const std::filesystem::path& file) {
  const std::string content = read_file(file, kMaxRuleFileBytes, ErrorKind::kConfig);
  size_t number = 0;
  for (std::string_view rest = content; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = stripped(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    ++number;
    if (line.empty() || line.front() == '#') continue;
    const auto fail = [&](const std::string& what) {
      throw Error(ErrorKind::kConfig, file.string() + ":" + std::to_string(number) + ": " + what);
    };
    const size_t colon = line.find(": ");
    if (colon == std::string_view::npos) fail("expected 'DOMAIN [in PART]: PATTERN'");
    std::string_view name = stripped(line.substr(0, colon));
    std::string part = "any";
    if (const size_t in = name.rfind(" in "); in != std::string_view::npos) {
      part = stripped(name.substr(in + 4));
      name = stripped(name.substr(0, in));
    }
    if (name.empty() || name.size() > kMaxDomainBytes)
      fail("expected a domain of 1 to " + std::to_string(kMaxDomainBytes) + " bytes before ':'");
    if (!part_named(part))
      fail("expected any, system, prompt, answer or model after 'in', found '" + part.substr(0, 40) + "'");
    RE2::Options options(RE2::Quiet);
    options.set_max_mem(kPatternMemoryBytes);
    const std::string pattern(stripped(line.substr(colon + 2)));
    auto compiled = std::make_unique<RE2>(pattern, options);
    if (!compiled->ok()) fail("not a regular expression of RE2: " + compiled->error());
    rules_.push_back({std::string(name), part_named(part), std::move(compiled)});
  }
  if (rules_.empty())
    throw Error(ErrorKind::kConfig, file.string() + ": no rules: expected lines 'DOMAIN [in PART]: PATTERN'");
}

DomainRules::~DomainRules() = default;
DomainRules::DomainRules(DomainRules&&) noexcept = default;

std::string DomainRules::tag(const TrafficRecord& record) const {
  for (const Rule& rule : rules_)
    if (RE2::PartialMatch(rule.part(record), *rule.pattern)) return rule.domain;
  return {};
}

}  // namespace specdec::data
