#include "data/redact/redact.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/error.h"
#include "data/formats/row_json.h"
#include "data/redact/detectors.h"
#include "data/redact/normalised_text.h"

namespace specdec::data {

namespace {

// Text that a detector with Holds::kDigit redacts begins and ends at most this many bytes from a digit. The largest
// distance is that of IBANs with spaces (41).
constexpr size_t kDigitReach = 56;

// Returns true for the characters that the pattern of e-mail addresses allows. Every byte of a non-ASCII character
// counts as allowed.
bool in_address(char c) { return is_word(c) || c == '.' || c == '-' || c == '%' || c == '+' || c == '@' || (c & 0x80); }

// Returns the next part of the text, from `position` on, that the detector has to search: all text to the end, the
// neighbourhood of the next digits, or the run of address characters around the next at sign.
Span next_stretch(const Detector& detector, std::string_view text, size_t position) {
  if (detector.holds == Detector::Holds::kAnything) return {position, text.size()};
  size_t begin, end;
  if (detector.holds == Detector::Holds::kAtSign) {
    begin = end = std::min(text.find('@', position), text.size());
    while (begin > position && in_address(text[begin - 1])) --begin;
    while (end < text.size() && in_address(text[end])) ++end;
    return {begin, end};
  }
  const size_t first = first_digit(text, position);
  if (first == text.size()) return {first, first};
  end = first;
  for (size_t i = first; i < std::min(text.size(), end + 2 * kDigitReach); ++i)
    if (is_digit(text[i])) end = i;
  begin = std::max(position, first - std::min(first, kDigitReach));
  return {begin, std::min(text.size(), end + kDigitReach)};
}

// Returns the position after the character at `i`, never the middle of a UTF-8 sequence.
size_t after_character(std::string_view text, size_t i) {
  for (++i; i < text.size() && (static_cast<unsigned char>(text[i]) & 0xC0) == 0x80;) ++i;
  return i;
}

// The text that the detectors search. Text that was redacted earlier is already replaced by tags. `origin` and `finds`
// are empty unless the text is a normalised form of an original. `origin` is then the position in the original of each
// byte of `text` and of its end, and `finds` collects the parts of the original to redact.
struct Work {
  struct Find {
    size_t begin, end;
    const char* tag;
  };
  std::string text;
  std::vector<uint32_t> origin;
  std::vector<Find> finds;
};

// Builds the text in which everything that one detector redacts is replaced by tags. Copies the text only if the
// detector redacts something.
class Replacement {
 public:
  explicit Replacement(Work& work) : work_(work) {}

  size_t copied() const { return copied_; }

  void replace(Span find, const char* tag) {
    copy_to(find.begin);
    out_ += tag;
    if (!work_.origin.empty()) {
      origin_.resize(out_.size(), work_.origin[find.begin]);
      work_.finds.push_back({work_.origin[find.begin], work_.origin[find.end], tag});
    }
    copied_ = find.end;
    ++count_;
  }

  int64_t finish() {
    if (count_ == 0) return 0;
    copy_to(work_.text.size());
    if (!work_.origin.empty()) origin_.push_back(work_.origin.back());
    work_.text = std::move(out_);
    work_.origin = std::move(origin_);
    return count_;
  }

 private:
  void copy_to(size_t end) {
    out_.append(work_.text, copied_, end - copied_);
    if (!work_.origin.empty())
      origin_.insert(origin_.end(), work_.origin.begin() + static_cast<std::ptrdiff_t>(copied_),
                     work_.origin.begin() + static_cast<std::ptrdiff_t>(end));
  }

  Work& work_;
  std::string out_;
  std::vector<uint32_t> origin_;
  size_t copied_ = 0;
  int64_t count_ = 0;
};

// Replaces everything that one detector redacts by the detector's tag. Returns the number of replacements.
int64_t replace_finds(const Detector& detector, Work& work) {
  const std::string_view text = work.text;
  Replacement made(work);
  size_t position = 0;
  while (position < text.size()) {
    const Span stretch = next_stretch(detector, text, position);
    position = stretch.begin;
    while (position < stretch.end) {
      const Span candidate = detector.propose(text, position, stretch.end);
      if (!candidate.found()) break;
      Span find = detector.check(text, candidate);
      if (!find.found()) {
        position = detector.candidates_are_whole ? candidate.end : after_character(text, candidate.begin);
        continue;
      }
      find.begin = std::max(find.begin, made.copied());
      made.replace(find, detector.tag);
      position = find.end;
    }
    position = std::max(position, stretch.end);
  }
  return made.finish();
}

// Returns the original text with the parts in `finds` replaced by their tags. If a part begins inside an earlier part
// and ends after it, the text after the earlier part is removed without a second tag.
std::string replaced(std::string_view original, std::vector<Work::Find> finds) {
  std::sort(finds.begin(), finds.end(), [](const Work::Find& a, const Work::Find& b) {
    return std::pair(a.begin, b.end) < std::pair(b.begin, a.end);
  });
  std::string out;
  size_t copied = 0;
  for (const Work::Find& find : finds) {
    if (find.begin < copied) {
      copied = std::max(copied, find.end);
      continue;
    }
    out.append(original.substr(copied, find.begin - copied)).append(find.tag);
    copied = find.end;
  }
  return out.append(original.substr(copied));
}

std::string redact_as(std::string_view input, bool is_id, RedactionCounts& counts) {
  TextFacts facts = count_facts(input);
  Work work;
  if (auto normalised = facts.foreign ? normalise(input) : std::nullopt) {
    facts = count_facts(normalised->text);
    work.text = std::move(normalised->text);
    work.origin = std::move(normalised->origin);
  } else {
    work.text = input;
  }
  for (const Detector& detector : detectors()) {
    if ((is_id && !detector.in_ids) || !detector.possible(facts, work.text)) continue;
    if (const int64_t n = replace_finds(detector, work)) counts[detector.name] += n;
  }
  if (work.origin.empty()) return std::move(work.text);
  return work.finds.empty() ? std::string(input) : replaced(input, std::move(work.finds));
}

// Replaces `name` by its keyed digest if it contains personal data or a secret. The digest is the same in every row,
// and different names get different digests.
void redact_name(std::string& name, const IdKey& key) {
  RedactionCounts finds;
  redact_as(name, true, finds);
  if (!finds.empty()) name = "redacted-" + key.digest("name", name);
}

// Redacts every string and number in `value`; a redacted number becomes a string. Keys are redacted only inside
// "arguments", where the model wrote them; elsewhere they belong to the program that sent the request. If redaction
// makes two keys equal, they are numbered.
void redact_values(nlohmann::ordered_json& value, bool with_keys, RedactionCounts& counts) {
  if (value.is_string()) {
    value = redact(value.get_ref<const std::string&>(), counts);
  } else if (value.is_number()) {
    const std::string digits = value.dump();
    if (std::string text = redact(digits, counts); text != digits) value = std::move(text);
  } else if (value.is_array()) {
    for (auto& item : value) redact_values(item, with_keys, counts);
  } else if (value.is_object()) {
    auto made = nlohmann::ordered_json::object();
    std::map<std::string, int> last_number;
    for (auto& [name, item] : value.get_ref<nlohmann::ordered_json::object_t&>()) {
      redact_values(item, with_keys || name == "arguments", counts);
      const std::string key = with_keys ? redact(name, counts) : name;
      std::string unique = key;
      if (key != name)
        while (made.contains(unique) || value.contains(unique))
          unique = key + "_" + std::to_string(++last_number.try_emplace(key, 1).first->second);
      made[unique] = std::move(item);
    }
    value = std::move(made);
  }
}

void redact_json(std::string& json, const char* what, const IdKey& key, RedactionCounts& counts) {
  if (json.empty()) return;
  auto list = parse_ordered_json(json, what);
  for (auto& item : list) {
    std::string* id = item.is_object() && item.contains("id") && item["id"].is_string()
                          ? &item["id"].get_ref<std::string&>()
                          : nullptr;
    std::string named = id ? std::exchange(*id, "") : "";
    redact_values(item, false, counts);
    redact_name(named, key);
    if (id) item["id"] = std::move(named);
  }
  json = list.dump();
  if (json.size() > kMaxOrderedBytes)
    throw Error(ErrorKind::kData, std::string(what) + ": " + std::to_string(json.size()) +
                                      " bytes after redaction, the limit is " + std::to_string(kMaxOrderedBytes));
}

}  // namespace

std::string redact(std::string_view text, RedactionCounts& counts) { return redact_as(text, false, counts); }

void redact_record(TrafficRecord& record, const IdKey& key, RedactionCounts& counts) {
  // The record's token ids decode to the unredacted text, so they are dropped if the text contains something to redact.
  const auto redact_spelled = [&](std::string& text) {
    std::string redacted = redact(text, counts);
    if (redacted != text) record.prompt_token_ids = record.token_ids = {};
    text = std::move(redacted);
  };
  for (ChatMessage& m : record.messages) {
    redact_spelled(m.content);
    m.reasoning_content = redact(m.reasoning_content, counts);
    m.name = redact(m.name, counts);
    redact_name(m.tool_call_id, key);
    redact_json(m.tool_calls, "tool_calls", key, counts);
  }
  redact_json(record.tools, "tools", key, counts);
  if (!record.template_kwargs.empty()) {
    auto kwargs = parse_ordered_json(record.template_kwargs, "template_kwargs");
    redact_values(kwargs, false, counts);
    record.template_kwargs = kwargs.dump();
  }
  for (std::string* field : {&record.prompt, &record.response, &record.text})
    if (!field->empty()) redact_spelled(*field);
  redact_name(record.id, key);
  redact_name(record.conversation, key);
}

}  // namespace specdec::data
