#include "engine/decode/controller.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/acceptance.h"

namespace specdec::decode {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The batch size from 1 to below `end` nearest to this one; of two the smaller. −1: none is usable.
template <class Usable>
int nearest(int batch, size_t end, Usable usable) {
  const int last = static_cast<int>(end) - 1;
  for (int d = 0; d < std::max(batch, last + 1); ++d) {
    if (const int below = batch - d; below >= 1 && below <= last && usable(below)) return below;
    if (const int above = batch + d; above >= 1 && above <= last && usable(above)) return above;
  }
  return -1;
}

// What a choice needs on its way: a step takes nothing from the heap once warm.
struct Choice {
  struct Depth {
    double reach, tau;  // at D
    int k, chosen;      // K at D; of the best D
    double tau_k;
  };
  std::vector<double> overlaps, verify;  // [sequences, max K]; [max K + 1]
  std::vector<Depth> depths;
  std::span<double> overlaps_of(size_t sequences, size_t k) {
    if (overlaps.size() < sequences * k) overlaps.resize(sequences * k);
    return std::span(overlaps).first(sequences * k);
  }
};
thread_local Choice choice;
thread_local std::vector<KController*> undecided;

}  // namespace

const char* to_string(PlainReason reason) {
  constexpr const char* kNames[kPlainReasons] = {"no_draft",  "request", "draft_failed", "does_not_pay", "schedule",
                                                 "measuring", "no_room", "catching_up",  "rules",        "from_text", "short_answer"};
  return kNames[static_cast<int>(reason)];
}

void CostModel::Cell::add(double sample, double of_rows, double expected, Pace& pace, bool tells) {
  constexpr double kNoise = 1, kPaceStep = 0.2, kCellStep = 0.001, kSlowFirst = 1.5, kMost = 2;
  if (tells) pace.variance += kPaceStep, ++pace.passes;
  if (count == 0 || (count < 3 && sample / pace.factor * kSlowFirst < seconds)) {
    seconds = sample / pace.factor;
    rows = of_rows;
    variance = kNoise + pace.variance;
  } else {
    variance += kCellStep * static_cast<double>(pace.passes - at);
    const double surprise = std::log(std::clamp(sample / (expected * pace.factor), 1 / kMost, kMost)), all = variance + pace.variance + kNoise;
    const double weight = variance / all;
    seconds *= std::exp(weight * surprise);
    rows += weight * (of_rows - rows);
    variance *= 1 - weight;
    if (tells) {
      pace.factor *= std::exp(pace.variance / all * surprise);
      pace.variance *= 1 - pace.variance / all;
    }
  }
  at = pace.passes;
  ++count;
}

CostModel CostModel::another_draft() const {
  CostModel other;
  other.target_ = target_;
  return other;
}

void CostModel::record_draft(int batch, double seconds) {
  if (batch < 1 || !(seconds > 0) || !std::isfinite(seconds)) return;
  if (draft_.size() <= static_cast<size_t>(batch)) draft_.resize(batch + 1);
  Cell& cell = draft_[batch];
  cell.add(seconds, 0, cell.seconds, target_->pace, false);
}

void CostModel::record_target(int batch, double rows, double seconds) {
  if (batch < 1 || !(rows >= 1) || !(seconds > 0) || !std::isfinite(seconds)) return;
  if (target_->batches.size() <= static_cast<size_t>(batch)) target_->batches.resize(batch + 1);
  Batch& of = target_->batches[batch];
  const auto at = static_cast<size_t>(std::lround(rows * kCellsPerRow));
  if (of.cells.size() <= at) of.cells.resize(at + 1);
  Cell& cell = of.cells[at];
  if (cell.count == 0) ++of.measured;
  if (++of.passes - cell.measured_at > kRefresh) cell.count = 0;
  cell.add(seconds, rows, cell.count == 0 ? 0 : of.interpolated(rows), target_->pace, true);
  cell.measured_at = of.passes;
}

// Linear between measured row counts and, along the line through the two outermost, beyond them. One point alone is taken as
// flat, which makes the controller try, and so measure, the others.
double CostModel::Batch::interpolated(double wanted) const {
  const Cell *below = nullptr, *above = nullptr, *first = nullptr, *last = nullptr;
  for (const Cell& cell : cells) {
    if (cell.count == 0) continue;
    if (!first) first = &cell;
    last = &cell;
    if (cell.rows <= wanted) below = &cell;
    if (cell.rows >= wanted && !above) above = &cell;
  }
  if (below == above) return below->seconds;
  const Cell& end = below ? *last : *first;
  if (first == last) return end.seconds;
  const auto slope = [](const Cell& a, const Cell& b) { return (b.seconds - a.seconds) / (b.rows - a.rows); };
  if (below && above) return below->seconds + slope(*below, *above) * (wanted - below->rows);
  const double line = end.seconds + std::max(0.0, slope(*first, *last)) * (wanted - end.rows);
  return std::max(line, end.seconds * std::min(1.0, wanted / end.rows));
}

// No pass takes longer than one of more rows: a figure that says so is of a busy moment, and would never be renewed.
double CostModel::Batch::seconds(int wanted) const {
  double least = interpolated(wanted);
  for (const Cell& cell : cells)
    if (cell.count > 0 && cell.rows >= wanted) least = std::min(least, cell.seconds);
  return least;
}

const CostModel::Batch* CostModel::basis(int batch) const {
  for (const int least : {2, 1})
    if (const int b = nearest(batch, target_->batches.size(), [&](int b) { return target_->batches[b].measured >= least; }); b > 0) return &target_->batches[b];
  return nullptr;
}

int CostModel::draft_basis(int batch) const {
  return nearest(batch, std::min(draft_.size(), target_->batches.size()), [this](int b) { return draft_[b].count > 0 && target_->batches[b].measured > 0; });
}

double CostModel::draft_seconds(int batch) const {
  const int b = draft_basis(batch);
  return b < 0 ? kNaN : draft_[b].seconds * target_->pace.factor;
}

void CostModel::record_read(int64_t tokens, double seconds) {
  if (tokens > 0 && seconds > 0 && std::isfinite(seconds)) read_.add(seconds / static_cast<double>(tokens), 0, read_.seconds, target_->pace, false);
}

double CostModel::read_cost(int batch) const {
  const Batch* const of = basis(batch);
  return of ? read_.seconds / of->seconds(1) : 0;
}

double CostModel::draft_cost(int batch) const {
  const int b = draft_basis(batch);
  return b < 0 ? kNaN : draft_[b].seconds / target_->batches[b].seconds(1);
}

double CostModel::verify_seconds(int batch, int k) const {
  const Batch* const of = basis(batch);
  return of ? of->seconds(k + 1) * target_->pace.factor : kNaN;
}

double CostModel::verify_cost(int batch, int k) const { return verify_seconds(batch, k) / verify_seconds(batch, 0); }

bool CostModel::ready(bool drafting) const {
  const bool drafted = !drafting || std::any_of(draft_.begin(), draft_.end(), [](const Cell& c) { return c.count > 0; });
  bool plain = false, verifying = false;
  for (const Batch& of : target_->batches)
    for (size_t r = 1; r < of.cells.size(); ++r)
      if (of.cells[r].count > 0) (r <= kCellsPerRow ? plain : verifying) = true;
  return drafted && plain && verifying;
}

bool CostModel::wants(int batch, int rows, int64_t refresh) const {
  if (target_->batches.size() <= static_cast<size_t>(batch)) return true;
  const Batch& of = target_->batches[batch];
  const size_t at = static_cast<size_t>(rows) * kCellsPerRow;
  if (of.cells.size() <= at) return true;
  return of.cells[at].count < 2 || of.passes - of.cells[at].measured_at >= refresh;
}

// Two steps in a row of eight and later of 64, no more, since neighbours with a K of their own may keep such a pass from ever happening.
bool CostModel::asks(int batch, int rows, int64_t refresh) const {
  const int64_t passes = target_->batches.size() <= static_cast<size_t>(batch) ? 0 : target_->batches[batch].passes;
  return passes % (passes < 64 ? 8 : std::min<int64_t>(refresh, 64)) < 2 && wants(batch, rows, refresh);
}

void OverlapMean::add(std::span<const double> overlaps) {
  constexpr double kDecay = 0.99;
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
  plain_owed_ = options_.plain_owed >= 0 ? options_.plain_owed : options_.probe_interval;
}

double KController::draft_cost(int batch) const {
  if (options_.free_draft) return 0;
  return costs_ ? costs_->draft_cost(batch) : options_.assumed_draft_cost;
}
double KController::verify_cost(int batch, int k) const { return costs_ ? costs_->verify_cost(batch, tree_nodes(options_.tree, k)) : 1.0; }

void KController::expect(int64_t to_read, int64_t to_come) {
  to_read_ = to_read;
  to_come_ = to_come;
}

// What it takes the draft to read, in plain steps.
double KController::reading() const { return costs_ && !options_.free_draft ? static_cast<double>(to_read_) * costs_->read_cost(batch_) : 0; }

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

double KController::rate_of(int batch, std::span<const double> overlap, int k) const {
  return predicted_speedup(expected_length(overlap.first(static_cast<size_t>(k))), k, draft_cost(batch), verify_cost(batch, k));
}

// 1 where nothing beats plain decoding.
double KController::best_rate(int batch, std::span<const double> overlap) const {
  if (options_.fixed_k >= 0) return rate_of(batch, overlap, options_.fixed_k);
  double rate = 1;
  for (int k = 1; k <= options_.max_k; ++k) rate = std::max(rate, rate_of(batch, overlap, k));
  return rate;
}

void KController::expected_overlaps(std::span<double> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = expected_overlap(static_cast<int>(i));
}

double KController::expected_rate(int batch) const {
  if (!measured()) return 1;
  const std::span<double> overlaps = choice.overlaps_of(1, static_cast<size_t>(std::max(max_k(), 1)));
  expected_overlaps(overlaps);
  return best_rate(batch, overlaps);
}

// Before costs are known: what the gate's schedule says, small without one.
int KController::unmeasured_k(int batch) const {
  int k = options_.schedule.empty() ? 2 : options_.schedule.front()[2];
  for (const auto& range : options_.schedule)
    if (batch >= range[0]) k = range[2];
  return std::min(k, options_.max_k);
}

int KController::choose_k(int batch) {
  KController* const self = this;
  choose({&self, 1}, batch);
  return decision_.k;
}

void KController::settle(int k, PlainReason plain) {
  decision_.k = k;
  decision_.plain = plain;
}

// Whether K is decided by something else than what pays.
bool KController::settled(int batch) {
  // Where drafting gains little, a plain step now and then costs nothing and shows when it gains nothing any more.
  const int64_t refresh = CostModel::kRefresh / (rate_ < 1.1 ? 16 : rate_ < 1.2 ? 4 : 1);
  decision_ = {};
  rate_ = 1;
  batch_ = batch;
  exploring_ = false;
  if (options_.fixed_k >= 0) {
    rate_ = expected_rate(batch);
    settle(options_.fixed_k, PlainReason::kNoDraft);
  } else if (options_.max_k < 1) {
    settle(0, PlainReason::kNoDraft);
  } else if (costs_ && costs_->asks(batch, 1, refresh)) {
    settle(0, PlainReason::kMeasuring);
  } else if (!measured()) {
    settle(unmeasured_k(batch), PlainReason::kSchedule);
  } else {
    return false;
  }
  return true;
}

void KController::choose(std::span<KController* const> sequences, int batch) {
  std::vector<KController*>& open = undecided;
  open.clear();
  for (KController* const s : sequences)
    if (!s->settled(batch)) open.push_back(s);
  share_depth(open, batch);
  const bool again = probe_again(open, batch);
  bool probes = false;
  for (KController* const s : sequences) {
    const PlainReason plain = s->decision_.plain;
    if (!s->adaptive() || (plain != PlainReason::kDoesNotPay && plain != PlainReason::kSchedule)) continue;
    if (s->decision_.k > 0) {
      s->plain_owed_ = s->probe_interval() / 2;  // what it saw last may have been bad luck
    } else if (again || --s->plain_owed_ < 0) {
      s->probe();
      probes = true;
    }
  }
  for (KController* const s : open) {
    const int k = s->decision_.k;
    if (k == 0 && probes && s->decision_.plain != PlainReason::kShortAnswer) s->probe();
    // A K that looks bad by an old or a single figure would never be measured again.
    // Not of trees: how many nodes a level gets depends on the text, so that its pass may never have the rows asked for.
    if (k == 0 || !s->costs_ || !s->options_.tree.empty() || k >= s->options_.max_k) continue;
    s->exploring_ = s->costs_->asks(batch, k + 2);
    s->decision_.k += s->exploring_;
  }
}

// Probes that would pay at what they just saw are followed by others at once, until the estimates agree or it stops paying.
bool KController::probe_again(std::span<KController* const> sequences, int batch) {
  double sum = 0;
  size_t probed = 0;
  for (const KController* const s : sequences) {
    if (s->probed_ < 0) continue;
    sum += s->probed_;
    ++probed;
  }
  if (probed == 0) return false;
  const KController& any = *sequences.front();
  const std::span<double> overlaps = choice.overlaps_of(1, static_cast<size_t>(any.options_.max_k));
  std::fill(overlaps.begin(), overlaps.end(), sum / static_cast<double>(probed));
  return any.best_rate(batch, overlaps) > 1 + any.options_.least_gain;
}

// The maximum of a ratio of sums, by Dinkelbach's iteration (1967): at the rate reached so far, sequence i takes the K ≤ D whose
// tau_i(K) − rate · v(K) is largest; the best D of these gives the next rate. It rises to the optimum in a few rounds.
void KController::share_depth(std::span<KController* const> open, int batch) {
  if (open.empty()) return;
  const KController& any = *open.front();
  const int deepest = any.options_.max_k;
  const double draft = any.draft_cost(batch), n = static_cast<double>(open.size());
  const auto levels = static_cast<size_t>(deepest);
  std::vector<double>& verify = choice.verify;
  std::vector<Choice::Depth>& depths = choice.depths;
  verify.clear();
  for (int k = 0; k <= deepest; ++k) verify.push_back(any.verify_cost(batch, k));
  const std::span<double> overlaps = choice.overlaps_of(open.size(), levels);
  depths.assign(open.size(), {1, 1, 0, 0, 1});
  for (size_t i = 0; i < open.size(); ++i) open[i]->expected_overlaps(overlaps.subspan(i * levels, levels));
  double rate = std::any_of(open.begin(), open.end(), [](const KController* s) { return s->drafting_; }) ? 1 : 1 + any.options_.least_gain;
  for (bool better = true; better;) {
    better = false;
    const double price = rate;
    double tau = n, seconds = n * verify[0];
    for (Choice::Depth& s : depths) s.reach = s.tau = s.tau_k = 1, s.k = 0;
    for (int d = 1; d <= deepest; ++d) {
      const double cost = verify[static_cast<size_t>(d)];
      for (size_t i = 0; i < depths.size(); ++i) {
        Choice::Depth& s = depths[i];
        s.reach *= overlaps[i * levels + static_cast<size_t>(d) - 1];
        s.tau += s.reach;
        const double before = verify[static_cast<size_t>(s.k)];
        if (s.tau - price * cost <= s.tau_k - price * before) continue;
        tau += s.tau - s.tau_k;
        seconds += cost - before;
        s.tau_k = s.tau;
        s.k = d;
      }
      const double reached = tau / (n * d * draft + seconds);
      if (reached <= rate * (1 + 1e-9)) continue;
      rate = reached;
      better = true;
      for (Choice::Depth& s : depths) s.chosen = s.k;
    }
  }
  for (size_t i = 0; i < open.size(); ++i) {
    KController& s = *open[i];
    s.rate_ = depths[i].chosen ? rate : 1;
    const bool read = depths[i].chosen == 0 || static_cast<double>(s.to_come_) / batch * (1 - 1 / rate) > s.reading() || s.to_come_ == 0;
    s.settle(read ? depths[i].chosen : 0, read ? PlainReason::kDoesNotPay : PlainReason::kShortAnswer);
  }
}

void KController::probe() {
  plain_owed_ = std::max(plain_owed_, 0) + probe_interval();
  decision_.probe = true;
  decision_.k = std::min(2, options_.max_k);
}

int KController::probe_interval() const {
  const int k = std::min(2, options_.max_k);
  const double more = k * draft_cost(batch_) + verify_cost(batch_, k) - 1 + reading();  // at worst: what it takes, none of it kept
  return more > 0 ? std::max(options_.probe_interval, static_cast<int>(std::min(more / options_.probe_share, 1e6))) : options_.probe_interval;
}

bool KController::stop_after(std::span<const double> confidences, int batch, int drafting) const {
  if (options_.fixed_k >= 0 || confidences.empty()) return false;
  if (options_.confidence_floor > 0) return confidences.back() < options_.confidence_floor;
  if (decision_.probe || exploring_ || !measured()) return false;
  const int k = static_cast<int>(confidences.size());
  double gain = expected_overlap(k);
  for (const double confidence : confidences) gain *= acceptance_given(confidence);
  const double cost = draft_cost(batch) * batch / std::max(drafting, 1) + std::max(0.0, verify_cost(batch, k + 1) - verify_cost(batch, k));
  return gain <= rate_ * cost;
}

void KController::observe(int drafted, int accepted, const std::vector<double>& overlaps, std::span<const double> confidences,
                          std::span<const double> ratios) {
  probed_ = -1;
  drafting_ = drafted > 0 && !decision_.probe;
  if (drafted == 0) return;
  const size_t reached = std::min({overlaps.size(), weight_.size()});
  // What was learned before a run of plain steps is old: a probe counts as much as all of it.
  const auto keep = [this](double weight) { return decision_.probe ? std::min(options_.decay, 1 / std::max(weight, 1e-9)) : options_.decay; };
  prior_weight_ = std::max(prior_weight_ * keep(weight_.front()), 1e-6);
  for (size_t i = 0; i < weight_.size(); ++i) {
    const double kept = keep(weight_[i]);
    weight_[i] *= kept;
    sum_[i] *= kept;
  }
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
  probed_ = decision_.probe && reached > 0 ? seen / static_cast<double>(reached) : -1;
}

}  // namespace specdec::decode
