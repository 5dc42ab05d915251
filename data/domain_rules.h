// Assigns domain tags by a rule file: one rule per line; the first rule that matches gives the tag.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/schema/traffic_record.h"

namespace specdec::data {

// DOMAIN [in PART]: PATTERN     e.g.   code in prompt: (?i)\b(def|class|#include)\b
// PART: any (default: all of the content), system, prompt (the messages that the last answer replies to), answer,
// model. PATTERN is a regular expression of RE2 (linear time), found anywhere in the part. Blank lines and lines that
// begin with # are skipped.
class DomainRules {
 public:
  // Throws Error(kConfig) with file and line: missing file, a line that is not a rule, a pattern that RE2 refuses.
  explicit DomainRules(const std::filesystem::path& file);
  ~DomainRules();
  DomainRules(DomainRules&&) noexcept;

  // Returns "" if no rule matches.
  std::string tag(const TrafficRecord& record) const;

 private:
  struct Rule;
  std::vector<Rule> rules_;
};

}  // namespace specdec::data
