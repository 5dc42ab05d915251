#include "deploy/validate/gate.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/format.h"

namespace specdec::deploy {

namespace {

// The page charts acceptance against the number of requests. Each point has 1.03 times as many requests as the previous
// point; 1,000 requests give about 200 points.
constexpr double kPointSpacing = 1.03;
}  // namespace

GateVerdict judge(const ValidationReport& report, const std::string& stale) {
  if (!stale.empty()) return {Verdict::kStale, stale, {}};
  std::string missing, open, passed;
  std::vector<ValidationReport::Figure> open_figures, figures;
  const auto add = [](std::string& to, const std::string& text, const char* separator) {
    to += (to.empty() ? "" : separator) + text;
  };
  for (const Check& check : checks_of(report)) {
    if (check.state == Check::State::kFail)
      return {check.verdict, check.text,
              check.figure ? std::vector{*check.figure} : std::vector<ValidationReport::Figure>()};
    if (check.figure && check.state == Check::State::kOpen) open_figures.push_back(*check.figure);
    if (check.figure && check.state == Check::State::kPass) figures.push_back(*check.figure);
    if (check.state == Check::State::kNotMeasured) add(missing, check.text, ", ");
    if (check.state == Check::State::kOpen) add(open, check.text, "; ");
    if (check.state == Check::State::kPass && check.segment.empty() && check.name != "lossless")
      add(passed, check.text, ", ");
  }
  if (missing.empty() && open.empty()) return {Verdict::kPass, passed, figures};
  if (!missing.empty()) missing = "not measured: " + missing;
  if (!open.empty()) add(missing, open, "; ");
  return {Verdict::kInconclusive, missing, open_figures};
}

void check_floor(const std::string& flag, double floor, bool force) {
  if (!(floor >= 0 && floor <= 1))
    throw Error(ErrorKind::kUsage, format("%s: expected a number in [0, 1], found %g", flag.c_str(), floor));
  if (floor < 0.5 && !force)
    throw Error(
        ErrorKind::kUsage,
        format("%s %g: a draft accepted less than half the time is hardly worth serving; use --force to gate below 0.5",
               flag.c_str(), floor));
}

AcceptanceGate::AcceptanceGate(AcceptanceRules rules) : rules_(std::move(rules)) {}

Estimate AcceptanceGate::Track::estimate(double scale, double shift) const {
  Estimate e{0, sequence.ci(), requests};
  e.value = requests ? sum / static_cast<double>(requests) : 0;
  e.ci = {std::min(e.ci.low, e.value), std::max(e.ci.high, e.value)};
  return {scale * e.value + shift, {scale * e.ci.low + shift, scale * e.ci.high + shift}, e.n};
}

void AcceptanceGate::observe(std::span<const ScoredRequest> conversation) {
  const auto observe = [&](Track& track, const auto& value, const std::string* segment) {
    double sum = 0;
    int64_t n = 0;
    for (const ScoredRequest& r : conversation)
      if (!segment || r.segment == *segment) {
        sum += value(r);
        ++n;
      }
    track.sequence.observe(sum / static_cast<double>(n));
    track.sum += sum;
    track.requests += n;
  };
  const auto alpha = [](const ScoredRequest& r) { return r.alpha; };
  const auto difference = [](const ScoredRequest& r) { return (1 + r.alpha - r.other) / 2; };
  observe(all_, alpha, nullptr);
  if (rules_.paired) observe(difference_, difference, nullptr);
  std::set<std::string> segments;
  for (const ScoredRequest& r : conversation)
    if (!r.segment.empty()) segments.insert(r.segment);
  for (const std::string& name : segments) {
    observe(segments_[name], alpha, &name);
    if (rules_.paired) observe(segment_differences_[name], difference, &name);
  }
  const Estimate now = all_.estimate();
  if (points_.empty() || static_cast<double>(now.n) >= kPointSpacing * static_cast<double>(points_.back().requests))
    points_.push_back({now.n, now.value, now.ci.low, now.ci.high});
  if (needed_ == 0 && decided()) needed_ = now.n;
}

void AcceptanceGate::fill(ValidationReport& r) const {
  r.floor = rules_.floor;
  r.goal = rules_.goal;
  r.alpha = all_.estimate();
  r.segments.clear();
  for (const auto& [name, track] : segments_) {
    r.segments.push_back({name, track.estimate(), {}, 0, {}});
    if (const auto floor = rules_.segment_floors.find(name); floor != rules_.segment_floors.end())
      r.segments.back().floor = floor->second;
  }
  if (rules_.paired) {
    r.baseline.emplace();
    r.baseline->difference = difference_.estimate(2, -1);
    r.baseline->min_gain = rules_.min_gain;
    for (const auto& [name, track] : segment_differences_)
      r.baseline->segments.push_back({name, track.estimate(2, -1), rules_.big_segments.count(name) > 0});
  }
  r.sequence = points_;
  if (!points_.empty() && points_.back().requests != r.alpha.n)
    r.sequence.push_back({r.alpha.n, r.alpha.value, r.alpha.ci.low, r.alpha.ci.high});
  r.requests_needed = needed_;
}

bool AcceptanceGate::decided() const {
  bool open = false;
  const auto fails = [&](const Check::State state) {
    open = open || state == Check::State::kOpen;
    return state == Check::State::kFail;
  };
  if (fails(side(all_.estimate(), rules_.floor))) return true;
  for (const auto& [name, floor] : rules_.segment_floors) {
    const auto it = segments_.find(name);
    if (fails(it == segments_.end() ? Check::State::kOpen : side(it->second.estimate(), floor))) return true;
  }
  if (rules_.paired && rules_.min_gain) {
    if (fails(side(difference_.estimate(2, -1), *rules_.min_gain))) return true;
    for (const auto& [name, track] : segment_differences_)
      if (rules_.big_segments.count(name) &&
          side(track.estimate(2, -1), -ValidationReport::kSegmentLoss) == Check::State::kFail)
        return true;
  }
  return !open;
}

Estimate paired_difference(const ValidationReport& now, const ValidationReport& baseline,
                           const std::map<std::string, std::string>& conversations) {
  std::map<std::string, double> before;
  for (size_t i = 0; i < baseline.request_ids.size(); ++i) before[baseline.request_ids[i]] = baseline.request_alphas[i];
  std::map<std::string, size_t> place;
  std::vector<std::vector<ScoredRequest>> pairs;  // one entry per conversation, in order of first appearance
  for (size_t i = 0; i < now.request_ids.size(); ++i) {
    const std::string& id = now.request_ids[i];
    const auto it = before.find(id);
    if (it == before.end()) continue;
    const auto conversation = conversations.find(id);
    const size_t at =
        place.try_emplace(conversation == conversations.end() ? "r:" + id : "c:" + conversation->second, pairs.size())
            .first->second;
    if (at == pairs.size()) pairs.emplace_back();
    pairs[at].push_back({"", now.request_alphas[i], it->second});
  }
  if (pairs.empty()) return {0, {-1, 1}, 0};
  AcceptanceRules rules;
  rules.paired = true;
  AcceptanceGate gate(rules);
  for (const auto& conversation : pairs) gate.observe(conversation);
  ValidationReport report;
  gate.fill(report);
  return report.baseline->difference;
}

}  // namespace specdec::deploy
