#include "engine/decode/controller.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>

namespace specdec::decode {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t kRefresh = 256;

}  // namespace

void CostModel::Cell::add(double sample) {
  if (count == 0)
    seconds = sample;
  else if (count < 3)
    seconds = std::min(seconds, sample);
  else
    seconds += 0.1 * (std::min(sample, 2 * seconds) - seconds);
  ++count;
}

void CostModel::record_draft(int batch, double seconds) {
  if (batch < 1 || !(seconds > 0) || !std::isfinite(seconds)) return;
  if (draft_.size() <= static_cast<size_t>(batch)) draft_.resize(batch + 1);
  draft_[batch].add(seconds);
}

void CostModel::record_target(int batch, int rows, double seconds) {
  if (batch < 1 || rows < 1 || !(seconds > 0) || !std::isfinite(seconds)) return;
  if (target_.size() <= static_cast<size_t>(batch)) {
    target_.resize(batch + 1);
    passes_.resize(batch + 1, 0);
  }
  auto& cells = target_[batch];
  if (cells.size() <= static_cast<size_t>(rows)) cells.resize(rows + 1);
  Cell& cell = cells[rows];
  if (++passes_[batch] - cell.measured_at > kRefresh) cell.count = 0;
  cell.add(seconds);
  cell.measured_at = passes_[batch];
}

int CostModel::nearest(int batch, const std::vector<bool>& usable) const {
  int best = -1;
  for (int b = 1; b < static_cast<int>(usable.size()); ++b)
    if (usable[b] && (best < 0 || std::abs(b - batch) < std::abs(best - batch))) best = b;
  return best;
}

// Of a batch size with at least one measured row count: linear between measured ones and, along the line through the two
// outermost, beyond them. One point alone is taken as flat, which makes the controller try, and so measure, the others.
double CostModel::target_seconds(int batch, int rows) const {
  const auto& cells = target_[batch];
  int below = -1, above = -1, first = -1, last = -1;
  for (int r = 1; r < static_cast<int>(cells.size()); ++r) {
    if (cells[r].count == 0) continue;
    if (first < 0) first = r;
    last = r;
    if (r <= rows) below = r;
    if (r >= rows && above < 0) above = r;
  }
  if (below == rows) return cells[rows].seconds;
  if (below > 0 && above > 0) {
    const double t = static_cast<double>(rows - below) / (above - below);
    return cells[below].seconds + t * (cells[above].seconds - cells[below].seconds);
  }
  const int end = below > 0 ? last : first;
  if (first == last) return cells[end].seconds;
  const double slope = std::max(0.0, (cells[last].seconds - cells[first].seconds) / (last - first));
  const double line = cells[end].seconds + slope * (rows - end);
  return std::max(line, cells[end].seconds * std::min(1.0, static_cast<double>(rows) / end));
}

double CostModel::draft_cost(int batch) const {
  std::vector<bool> usable(std::min(draft_.size(), target_.size()), false);
  for (size_t b = 1; b < usable.size(); ++b) usable[b] = draft_[b].count > 0 && !target_[b].empty();
  const int b = nearest(batch, usable);
  return b < 0 ? kNaN : draft_[b].seconds / target_seconds(b, 1);
}

double CostModel::verify_cost(int batch, int k) const {
  std::vector<bool> any(target_.size(), false), several(target_.size(), false);
  for (size_t b = 1; b < target_.size(); ++b) {
    const auto measured = std::count_if(target_[b].begin(), target_[b].end(), [](const Cell& c) { return c.count > 0; });
    any[b] = measured > 0;
    several[b] = measured > 1;
  }
  int b = nearest(batch, several);
  if (b < 0) b = nearest(batch, any);
  return b < 0 ? kNaN : target_seconds(b, k + 1) / target_seconds(b, 1);
}

bool CostModel::ready(bool drafting) const {
  const bool drafted = !drafting || std::any_of(draft_.begin(), draft_.end(), [](const Cell& c) { return c.count > 0; });
  bool plain = false, verifying = false;
  for (const auto& cells : target_)
    for (size_t r = 1; r < cells.size(); ++r)
      if (cells[r].count > 0) (r == 1 ? plain : verifying) = true;
  return drafted && plain && verifying;
}

bool CostModel::wants(int batch, int rows) const {
  if (target_.size() <= static_cast<size_t>(batch) || target_[batch].size() <= static_cast<size_t>(rows)) return true;
  const Cell& cell = target_[batch][rows];
  return cell.count < 2 || passes_[batch] - cell.measured_at >= kRefresh;
}

void OverlapMean::add(std::span<const double> overlaps) {
  constexpr double kDecay = 0.999;
  for (const double overlap : overlaps) {
    sum_ = sum_ * kDecay + overlap;
    weight_ = weight_ * kDecay + 1;
  }
}

ControllerOptions controller_options(const SpeculationOptions& options) {
  ControllerOptions out;
  out.fixed_k = options.k;
  out.max_k = std::max(options.k, options.max_k);
  out.tree = options.tree;
  return out;
}

ControllerOptions suffix_controller_options(const SpeculationOptions& options) {
  ControllerOptions out = controller_options({.k = options.k, .max_k = options.max_k});
  out.free_draft = true;
  return out;
}

KController::KController(ControllerOptions options, const CostModel* costs) : options_(std::move(options)), costs_(costs) {
  if (const int depth = static_cast<int>(options_.tree.size()); depth > 0) {
    options_.fixed_k = std::min(options_.fixed_k, depth);
    options_.max_k = std::min(options_.max_k, depth);
  }
  weight_.assign(static_cast<size_t>(std::max(options_.max_k, 1)), 0.0);
  sum_ = weight_;
  prior_weight_ = std::max(options_.prior_weight, 1e-6);
}

double KController::draft_cost(int batch) const {
  if (options_.free_draft) return 0;
  return costs_ ? costs_->draft_cost(batch) : options_.assumed_draft_cost;
}
double KController::verify_cost(int batch, int k) const { return costs_ ? costs_->verify_cost(batch, tree_nodes(options_.tree, k)) : 1.0; }

double KController::pooled() const {
  return (std::accumulate(sum_.begin(), sum_.end(), 0.0) + prior_weight_ * options_.prior_overlap) /
         (std::accumulate(weight_.begin(), weight_.end(), 0.0) + prior_weight_);
}

double KController::expected_overlap(int position) const {
  const size_t i = std::min<size_t>(std::max(position, 0), weight_.size() - 1);
  return (sum_[i] + pooled()) / (weight_[i] + 1.0);  // one observation's worth of the other positions
}

double KController::acceptance_given(double confidence) const {
  const int bin = std::clamp(static_cast<int>(confidence * kBins), 0, kBins - 1);
  // A request sees a bin a few dozen times: fewer observations than this say little against the mean of all.
  constexpr double kPooledWeight = 16;
  return (bin_sum_[bin] + kPooledWeight * pooled()) / (bin_weight_[bin] + kPooledWeight);
}

int KController::best_k(int batch, const std::vector<double>& overlap, double* rate) const {
  const double c = draft_cost(batch);
  double reach = 1, tau = 1;
  int best = 0;
  *rate = 1;
  for (int k = 1; k <= max_k(); ++k) {
    reach *= overlap[static_cast<size_t>(k) - 1];
    tau += reach;
    const double s = tau / (k * c + verify_cost(batch, k));
    if (options_.fixed_k >= 0 ? k == options_.fixed_k : s > *rate) {
      *rate = s;
      best = k;
    }
  }
  return best;
}

std::vector<double> KController::expected_overlaps() const {
  std::vector<double> out(static_cast<size_t>(std::max(max_k(), 1)));
  for (size_t i = 0; i < out.size(); ++i) out[i] = expected_overlap(static_cast<int>(i));
  return out;
}

double KController::expected_rate(int batch) const {
  double rate = 1;
  if (measured()) best_k(batch, expected_overlaps(), &rate);
  return rate;
}

// Before costs are known: what the gate's schedule says, small without one.
int KController::unmeasured_k(int batch) const {
  int k = options_.schedule.empty() ? 2 : options_.schedule.front()[2];
  for (const auto& range : options_.schedule)
    if (batch >= range[0]) k = range[2];
  return std::min(k, options_.max_k);
}

int KController::choose_k(int batch) {
  if (options_.fixed_k >= 0) {
    rate_ = expected_rate(batch);
    return options_.fixed_k;
  }
  if (options_.max_k < 1) return 0;
  const int small = std::min(2, options_.max_k);
  rate_ = 1;
  probing_ = false;
  batch_ = batch;
  exploring_ = false;
  // At most two of eight, since neighbours with a K of their own may keep a plain pass from ever happening.
  if (costs_ && costs_->wants(batch, 1) && plain_asked_++ % 8 < 2) return 0;
  int k = 0;
  if (!measured()) {
    k = unmeasured_k(batch);
  } else {
    k = best_k(batch, expected_overlaps(), &rate_);
  }
  if (k > 0) {
    plain_since_probe_ = 0;
    // A K that looks bad by an old or a single figure would never be measured again.
    // Not of trees: how many nodes a level gets depends on the text, so that its pass may never have the rows asked for.
    exploring_ = costs_ && measured() && options_.tree.empty() && k < options_.max_k && costs_->wants(batch, k + 2) && longer_asked_++ % 8 < 2;
    return exploring_ ? k + 1 : k;
  }
  if (!probe_paid_ && ++plain_since_probe_ <= options_.probe_interval) return 0;
  plain_since_probe_ = 0;
  probing_ = true;
  return small;
}

bool KController::stop_after(std::span<const double> confidences, int batch) const {
  if (options_.fixed_k >= 0 || confidences.empty()) return false;
  if (options_.confidence_floor > 0) return confidences.back() < options_.confidence_floor;
  if (probing_ || exploring_ || !measured()) return false;
  const int k = static_cast<int>(confidences.size());
  double gain = expected_overlap(k);
  for (const double confidence : confidences) gain *= acceptance_given(confidence);
  const double cost = draft_cost(batch) + std::max(0.0, verify_cost(batch, k + 1) - verify_cost(batch, k));
  return gain <= rate_ * cost;
}

void KController::observe(int drafted, int accepted, const std::vector<double>& overlaps, std::span<const double> confidences,
                          std::span<const double> ratios) {
  if (drafted == 0) return;
  const size_t reached = std::min({overlaps.size(), weight_.size()});
  for (size_t i = 0; i < weight_.size(); ++i) {
    // What was learned before a run of plain steps is old: a probe counts as much as all of it.
    const double keep = probing_ ? std::min(options_.decay, 1.0 / std::max(weight_[i], 1e-9)) : options_.decay;
    weight_[i] *= keep;
    sum_[i] *= keep;
  }
  prior_weight_ = std::max(prior_weight_ * options_.decay, 1e-6);
  double seen = 0;
  for (size_t i = 0; i < reached; ++i) {
    weight_[i] += 1;
    sum_[i] += overlaps[i];
    seen += overlaps[i];
  }
  for (size_t i = 0; i < std::min(confidences.size(), ratios.size()); ++i) {
    const int bin = std::clamp(static_cast<int>(confidences[i] * kBins), 0, kBins - 1);
    bin_weight_[bin] = bin_weight_[bin] * options_.decay + 1;
    bin_sum_[bin] = bin_sum_[bin] * options_.decay + ratios[i];
  }
  // A probe that would pay at what it just saw is followed by another at once, until the estimates agree or it stops paying.
  probe_paid_ = false;
  if (probing_ && reached > 0) {
    double rate = 1;
    const std::vector<double> constant(options_.max_k, seen / static_cast<double>(reached));
    probe_paid_ = best_k(batch_, constant, &rate) > 0;
  }
}

}  // namespace specdec::decode
