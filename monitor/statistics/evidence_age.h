// Tracks the age of the newest evidence. It counts the checks (looks) with traffic of which nothing could be judged;
// after kMostUnjudged of them the evidence is too old for a verdict. Checks without traffic do not count.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::monitor {

class EvidenceAge {
 public:
  // After this many looks at traffic that could not be judged, with no judged look in between, the verdict becomes
  // inconclusive. The number equals the scrapes that a verdict needs.
  static constexpr int64_t kMostUnjudged = 10;

  enum class Look { kIdle, kJudged, kUnjudged };
  void add(Look look, int64_t now);

  bool is_too_old() const { return unjudged_ >= kMostUnjudged; }
  int64_t unjudged() const { return unjudged_; }  // number of looks at unjudged traffic since something was judged
  int64_t since() const { return since_; }        // unix time when something was last judged, or of the first look
  // Returns a clause that says the verdict rests on earlier looks, to be appended to a sentence; "" if the last look
  // judged something.
  std::string text() const;

  std::string state() const;
  // Restores the result of state(); "" means that there was no look yet. Throws Error(kData).
  static EvidenceAge restored(const std::string& state, const std::string& where);

 private:
  int64_t unjudged_ = 0, since_ = 0;
  bool is_new_ = true;  // true if the last look judged something
};

}  // namespace specdec::monitor
