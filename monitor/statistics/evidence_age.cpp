#include "monitor/statistics/evidence_age.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/format.h"
#include "base/json.h"

namespace specdec::monitor {

void EvidenceAge::add(Look look, int64_t now) {
  is_new_ = look == Look::kJudged;
  if (is_new_) unjudged_ = 0;
  if (is_new_ || since_ == 0) since_ = now;
  unjudged_ += look == Look::kUnjudged;
}

std::string EvidenceAge::text() const {
  if (is_new_) return "";
  if (unjudged_ == 0) return "; nothing new to judge since " + format_utc(since_);
  return format("; since %s %lld %s had traffic that cannot be judged (%lld make this inconclusive)",
                format_utc(since_).c_str(), static_cast<long long>(unjudged_), unjudged_ == 1 ? "look" : "looks",
                static_cast<long long>(kMostUnjudged));
}

std::string EvidenceAge::state() const { return Json{{"unjudged", unjudged_}, {"since", since_}}.dump(); }

EvidenceAge EvidenceAge::restored(const std::string& state, const std::string& where) {
  EvidenceAge age;
  if (state.empty()) return age;
  const Json o = parse_json(state, where);
  age.unjudged_ = json_int(o, "unjudged", {0, kMaxCount}, where, ErrorKind::kData);
  age.since_ = json_int(o, "since", {0, kMaxCount}, where, ErrorKind::kData);
  return age;
}

}  // namespace specdec::monitor
