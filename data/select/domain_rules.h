// Assigns domain tags by a rule file: one rule per line; the first rule that matches gives the tag.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/schema/traffic_record.h"

namespace specdec::data {

// The rules of one file. Each line is a rule of the form
//   DOMAIN [in PART]: PATTERN, for example "code in prompt: (?i)\b(def|class|#include)\b".
// PART is "any" (the whole content; the default), "system", "prompt" (the user messages that the last answer replies
// to), "answer" or "model". PATTERN is a regular expression of RE2 (linear time), found anywhere in the part. Blank
// lines and lines that begin with # are skipped.
class DomainRules {
 public:
  // Throws Error(kConfig) if the file is missing or has no rules. If a line is not a rule, or RE2 refuses its pattern,
  // the error names the line.
  explicit DomainRules(const std::filesystem::path& file);
  ~DomainRules();
  DomainRules(DomainRules&&) noexcept;

  // Returns the domain of the first rule that matches, or "" if none does.
  std::string tag(const TrafficRecord& record) const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

}  // namespace specdec::data
