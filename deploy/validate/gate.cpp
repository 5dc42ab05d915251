#include "deploy/validate/gate.h"

#include <cstdio>
#include <map>
#include <vector>

#include "base/error.h"

namespace specdec::deploy {

namespace {

template <class... Args>
std::string format(const char* pattern, Args... args) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, args...);
  return text;
}

std::string with_interval(const char* name, const Estimate& e) {
  return format("%s %.3f [%.3f, %.3f]", name, e.value, e.ci.low, e.ci.high);
}

}  // namespace

GateVerdict judge(const ValidationReport& r, const GateRules& rules) {
  if (!rules.stale.empty()) return {"stale", rules.stale};
  if (r.has_lossless && r.differences > 0)
    return {"not_lossless", format("greedy output differs from plain decoding on %lld of %lld prompts, and not at a near-tie",
                                   static_cast<long long>(r.differences), static_cast<long long>(r.greedy_prompts))};
  if (r.has_lossless && !(r.sampled_p_value > kSampledLimit))
    return {"not_lossless",
            format("sampled output is not distributed as the target's: p = %.2g, limit %.0e", r.sampled_p_value, kSampledLimit)};
  const bool has_alpha = r.alpha.n > 0, has_speed = r.has_speed && r.speedup.n > 0;
  const std::string alpha = with_interval("acceptance", r.alpha), speed = with_interval("speed-up at batch 1", r.speedup);
  if (has_alpha && r.alpha.ci.high < rules.floor) return {"fail", alpha + format(" is below the floor %.2f", rules.floor)};
  if (has_speed && r.speedup.ci.high <= 1) return {"not_worth_it", speed + ": decoding without the draft is as fast or faster"};

  std::string missing;
  for (const auto& [there, name] : {std::pair{has_alpha, "acceptance"}, {has_speed, "speed"}, {r.has_lossless, "lossless"}})
    if (!there) missing += (missing.empty() ? "" : ", ") + std::string(name);
  const bool above_floor = has_alpha && r.alpha.ci.low > rules.floor, gains = has_speed && r.speedup.ci.low > 1;
  if (missing.empty() && above_floor && gains)
    return {"pass", alpha + format(" is above the floor %.2f", rules.floor) +
                        (r.alpha.ci.low > rules.goal ? format(" and the goal %.2f", rules.goal) : "") + ", " + speed};
  std::string reason;
  const auto add = [&](const std::string& text) { reason += (reason.empty() ? "" : "; ") + text; };
  if (!missing.empty()) add("not measured: " + missing);
  if (has_alpha && !above_floor) add(alpha + format(" holds the floor %.2f: give more requests", rules.floor));
  if (has_speed && !gains) add(speed + " holds 1: give more prompts or an idle machine");
  return {"inconclusive", reason};
}

void check_rules(const GateRules& rules, bool force) {
  const auto check = [](const char* flag, double value) {
    if (!(value >= 0 && value <= 1))
      throw Error(ErrorKind::kUsage, format("%s: expected a number in [0, 1], found %g", flag, value));
  };
  check("--floor", rules.floor);
  check("--goal", rules.goal);
  if (rules.floor < 0.5 && !force)
    throw Error(
        ErrorKind::kUsage,
        format("--floor %g: a draft accepted less than half the time is hardly worth serving; use --force to gate below 0.5",
               rules.floor));
}

Estimate paired_difference(const ValidationReport& now, const ValidationReport& baseline) {
  std::map<std::string, double> before;
  for (size_t i = 0; i < baseline.request_ids.size(); ++i) before[baseline.request_ids[i]] = baseline.request_alphas[i];
  std::vector<double> differences;
  for (size_t i = 0; i < now.request_ids.size(); ++i)
    if (const auto it = before.find(now.request_ids[i]); it != before.end())
      differences.push_back(now.request_alphas[i] - it->second);
  if (differences.empty()) return {0, {-1, 1}, 0};
  return bootstrap(differences.size(), [&](std::span<const size_t> units) {
    double sum = 0;
    for (const size_t unit : units) sum += differences[unit];
    return sum / static_cast<double>(units.size());
  });
}

}  // namespace specdec::deploy
