// A bounded list of messages about other servers' pages, which may have any number of problems. The first messages are
// kept, the others are only counted, because the messages are stored in a history that is never shortened.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace specdec::monitor {

class Few {
 public:
  static constexpr size_t kKept = 10;

  void add(const std::string& line) {
    ++count_;
    if (kept_.size() < kKept) kept_.push_back(line);
  }
  // Adds the lines of `other`, each prefixed with `before`.
  void add(const Few& other, const std::string& before) {
    for (const std::string& line : other.kept_) add(before + line);
    count_ += other.count_ - static_cast<int64_t>(other.kept_.size());
  }
  bool empty() const { return count_ == 0; }
  int64_t count() const { return count_; }
  const std::string& front() const { return kept_.front(); }
  // Returns the kept lines, followed by "and N more" if N lines were only counted.
  std::vector<std::string> lines() const {
    std::vector<std::string> lines = kept_;
    if (const int64_t more = count_ - static_cast<int64_t>(kept_.size()); more > 0)
      lines.push_back("and " + std::to_string(more) + " more");
    return lines;
  }

 private:
  std::vector<std::string> kept_;
  int64_t count_ = 0;
};

}  // namespace specdec::monitor
