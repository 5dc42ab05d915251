// Says how old the newest evidence is. A server that nobody asks anything leaves its evidence as it is; traffic that
// cannot be judged makes it older, until it is too old for a verdict.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::monitor {

class EvidenceAge {
 public:
  // This many looks at traffic of which nothing could be judged, with no judged look in between, end a verdict. They
  // are as many as the scrapes that a verdict needs.
  static constexpr int64_t kMostUnjudged = 10;

  enum class Look { kIdle, kJudged, kUnjudged };
  void add(Look look, int64_t now);

  bool is_too_old() const { return unjudged_ >= kMostUnjudged; }
  int64_t unjudged() const { return unjudged_; }  // looks at traffic since something was judged
  int64_t since() const { return since_; }        // when something was judged last, as far as it is known
  // Returns the end of a sentence about a verdict that rests on earlier looks, "" if the last look judged something.
  std::string text() const;

  std::string state() const;
  // Reads what state() wrote. "" is a state that never looked. Throws Error(kData).
  static EvidenceAge restored(const std::string& state, const std::string& where);

 private:
  int64_t unjudged_ = 0, since_ = 0;
  bool is_new_ = true;  // the last look judged something
};

}  // namespace specdec::monitor
