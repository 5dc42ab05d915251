// Tracks the age of the newest evidence. A look is one check's reading of the sources. If kMostUnjudged looks in a row
// find traffic but cannot judge any of it, the evidence is too old for a verdict. Looks that find no traffic are not
// counted.
#pragma once

#include <cstdint>
#include <string>

namespace specdec::monitor {

class EvidenceAge {
 public:
  // After this many checks that read traffic but could not judge any of it, with no check in between that judged
  // traffic, the verdict becomes inconclusive. The number equals the number of scrapes that a verdict needs.
  static constexpr int64_t kMostUnjudged = 10;

  enum class Look { kIdle, kJudged, kUnjudged };
  void add(Look look, int64_t now);

  bool is_too_old() const { return unjudged_ >= kMostUnjudged; }
  int64_t unjudged() const { return unjudged_; }  // checks with unjudged traffic since the last judged traffic
  int64_t since() const { return since_; }        // unix time when traffic was last judged, or of the first check
  // Returns a clause for the end of a sentence, which says that the verdict rests on evidence of earlier checks.
  // Returns "" if the last check judged traffic.
  std::string text() const;

  std::string state() const;
  // Restores the result of state(); "" means that there was no check yet. Throws Error(kData).
  static EvidenceAge restored(const std::string& state, const std::string& where);

 private:
  int64_t unjudged_ = 0, since_ = 0;
  bool is_new_ = true;  // true if the last check judged traffic
};

}  // namespace specdec::monitor
