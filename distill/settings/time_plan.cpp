#include "distill/settings/time_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/format.h"

namespace specdec::distill {

namespace {

constexpr double kLongShare = 0.1, kShortShare = 1.0 / 3, kShortSeconds = 20;
// One entry for each Stage: the share of the preparation time that may be used up when this stage ends.
constexpr double kStageEnds[] = {0.2, 0.6, 0.85, 1};
constexpr double kLeastStageShare = 0.05;     // each stage gets at least this share of the time for all stages
constexpr double kLeastPreparingShare = 0.3;  // all stages together get at least this share of the preparation time

}  // namespace

TimePlan::TimePlan(double limit_seconds, double sample, const Clock& clock)
    : limit_(limit_seconds), sample_(sample), clock_(&clock), begin_(limit_ > 0 ? clock.seconds() : 0) {}

double TimePlan::elapsed() const { return clock_->seconds() - begin_; }

double TimePlan::judging_seconds() const {
  if (!is_limited()) return std::numeric_limits<double>::infinity();
  const double whole = limit_ / sample_;
  return std::max(kLongShare * whole, std::min(kShortShare * whole, kShortSeconds));
}

double TimePlan::preparing_seconds() const { return judging_seconds(); }

void TimePlan::set_loaded() { loaded_ = is_limited() ? elapsed() : 0; }

double TimePlan::seconds_for(Stage stage) const {
  if (!is_limited()) return std::numeric_limits<double>::infinity();
  const double stages = std::max(preparing_seconds() - loaded_, kLeastPreparingShare * preparing_seconds()),
               end = loaded_ + stages * kStageEnds[static_cast<size_t>(stage)];
  return std::max(end - elapsed(), kLeastStageShare * stages);
}

double TimePlan::training_seconds(double judging) const {
  if (!is_limited()) return 0;
  if (sample_ < 1) return kUsualTrainingShare * limit_;
  return std::max(kShortShare * limit_, limit_ - elapsed() - std::min(judging, judging_seconds()));
}

double usual_duration(double seconds) {
  const auto up = [&](double to) { return std::ceil(seconds / to - 1e-9) * to; };
  return seconds <= 90 ? up(10) : seconds <= 600 ? up(60) : seconds <= 5400 ? up(300) : up(3600);
}

std::string duration_text(double seconds) {
  const auto whole = [&](double unit) { return seconds >= unit && std::fmod(seconds, unit) == 0; };
  if (whole(3600)) return format("%.0fh", seconds / 3600);
  if (whole(60)) return format("%.0fm", seconds / 60);
  return format("%.6gs", seconds);
}

}  // namespace specdec::distill
