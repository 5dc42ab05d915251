// Tracks the age of the newest evidence. A look is one check's reading of the sources. After kMostUnjudged looks at
// traffic of which nothing could be judged, the evidence is too old for a verdict. Looks without traffic do not count.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::monitor {

class EvidenceAge {
 public:
  // After this many looks at traffic that could not be judged, with no judged look in between, the verdict becomes
  // inconclusive. The number equals the number of scrapes that a verdict needs.
  static constexpr int64_t kMostUnjudged = 10;

  enum class Look { kIdle, kJudged, kUnjudged };
  void add(Look look, int64_t now);

  bool is_too_old() const { return unjudged_ >= kMostUnjudged; }
  int64_t unjudged() const { return unjudged_; }  // number of looks at unjudged traffic since something was judged
  int64_t since() const { return since_; }        // unix time when something was last judged, or of the first look
  // Returns a clause for the end of a sentence: that the verdict rests on earlier looks. Returns "" if the last look
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
