#include "engine/decode/control/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace specdec::decode {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
// Variances of the logarithm of a pass's seconds, in units of the noise variance of one sample. A cell stores the cost
// of passes with one number of rows. The pace is a factor of all costs that drifts with time, because the machine's
// speed does (cost_model.h).
constexpr double kNoise = 1;         // variance of one sample
constexpr double kPaceStep = 0.2;    // added per pass to the variance of the machine's speed (pace), which drifts
constexpr double kCellStep = 0.003;  // added per pass to the variance of a measured cost (cell), which may change
// Added to the variance of a pass's cost if the cost is estimated from passes of all batch sizes, because contexts and
// sampling differ between batch sizes.
constexpr double kBatchesDiffer = 0.25;
// The cost of a pass may be interpolated between two measured numbers of rows. The variance of such an estimate is this
// factor times the product of the distances to both, in logarithms of rows.
constexpr double kBetweenCells = 4;
// Replaces kBetweenCells if passes of only one number of rows were measured, because it is then unknown how the cost
// grows with the rows.
constexpr double kOneCell = 50;
// Maximum factor by which a sample of a target pass may differ from the estimate before it is clipped. This also limits
// how far one sample moves the estimate of the machine's speed (pace).
constexpr double kMost = 1.25;
constexpr double kMostOfDraft = 2;  // larger than kMost, because there are few draft passes while drafting does not pay
constexpr int kCellsPerRow = 2;

// Returns the usable batch size from 1 to `end` − 1 that is nearest to `batch` (of two equally near ones, the smaller),
// or −1 if none is usable.
template <class Usable>
int nearest(int batch, size_t end, Usable usable) {
  const int last = static_cast<int>(end) - 1;
  for (int d = 0; d < std::max(batch, last + 1); ++d) {
    if (const int below = batch - d; below >= 1 && below <= last && usable(below)) return below;
    if (const int above = batch + d; above >= 1 && above <= last && usable(above)) return above;
  }
  return -1;
}

bool sane(double seconds) { return seconds > 0 && std::isfinite(seconds); }

// Returns the index of the cell that stores the cost of passes with this many rows, summed over all sequences. Up to 16
// rows, each number of rows has its own cell. Beyond, each doubling of the rows is divided into 8 cells.
size_t cell_of(double rows) {
  const auto n = static_cast<size_t>(std::lround(rows));
  if (n <= 16) return n;
  const auto octave = static_cast<size_t>(std::ilogb(static_cast<double>(n)));
  return 16 + (octave - 4) * 8 + ((n - (size_t{1} << octave)) >> (octave - 3));
}

size_t cell_of(int batch, double rows) { return static_cast<size_t>(std::lround(rows / batch * kCellsPerRow)); }

}  // namespace

double CostModel::Cell::variance_now(const Pace& pace) const {
  return variance + kCellStep * static_cast<double>(pace.passes - at);
}

bool CostModel::Cell::add(double sample, double of_rows, double expected, const Pace& pace, const Outliers& outliers) {
  constexpr double kSlowFirst = 1.5;
  constexpr int kAgree = 3;
  const double now = sample / pace.factor;
  const bool fresh = count == 0 || (count < 3 && now * kSlowFirst < seconds);
  if (fresh) {
    seconds = now;
    rows = of_rows;
    variance = kNoise + pace.variance;
    clipped = 0;
  } else {
    variance = variance_now(pace);
    double surprise = std::log(now / expected);
    const double most = std::log(outliers.most);
    const bool in_a_row = outliers.tell_pace && pace.passes - at < 2;
    if (std::abs(surprise) < most)
      clipped = 0;
    else if (!in_a_row)
      clipped = surprise > 0 ? std::max(clipped, 0) + 1 : std::min(clipped, 0) - 1;
    if (std::abs(clipped) < kAgree)
      surprise = std::clamp(surprise, -most, most);
    else
      variance = std::max(variance, kNoise);  // several clipped samples agree, so the cost has changed
    const double weight = variance / (variance + pace.variance + kNoise);
    seconds *= std::exp(weight * surprise);
    rows += weight * (of_rows - rows);
    variance *= 1 - weight;
  }
  at = pace.passes;
  ++count;
  return !fresh;
}

bool CostModel::Curve::add(size_t index, double rows, double seconds, const Pace& pace) {
  // Reserved so that a warm step with a new number of rows allocates nothing.
  constexpr size_t kAtOnce = 64;
  if (cells.capacity() == 0) cells.reserve(kAtOnce);
  if (cells.size() <= index) cells.resize(index + 1);
  Cell& cell = cells[index];
  if (cell.count == 0) ++measured;
  const bool known = cell.add(seconds, rows, cell.count == 0 ? 0 : line(rows, pace).seconds, pace, {kMost, true});
  cell.measured_at = ++passes;
  return known;
}

// Estimates the seconds of a pass with `wanted` rows: interpolates linearly between the measured numbers of rows, and
// extrapolates beyond them with the slope between the lowest and the highest. If only one number of rows was measured,
// the estimate is constant.
CostModel::Estimate CostModel::Curve::line(double wanted, const Pace& pace) const {
  const Cell *below = nullptr, *above = nullptr, *first = nullptr, *last = nullptr;
  for (const Cell& cell : cells) {
    if (cell.count == 0) continue;
    if (!first) first = &cell;
    last = &cell;
    if (cell.rows <= wanted) below = &cell;
    if (cell.rows >= wanted && !above) above = &cell;
  }
  if (!first) return {kNaN, std::numeric_limits<double>::infinity()};
  if (below == above) return {below->seconds, below->variance_now(pace)};
  const auto slope = [](const Cell& a, const Cell& b) { return (b.seconds - a.seconds) / (b.rows - a.rows); };
  if (below && above) {
    const double share = (wanted - below->rows) / (above->rows - below->rows);
    const double between = kBetweenCells * std::log(wanted / below->rows) * std::log(above->rows / wanted);
    return {below->seconds + slope(*below, *above) * (wanted - below->rows),
            (1 - share) * below->variance_now(pace) + share * above->variance_now(pace) + between};
  }
  const Cell& end = below ? *last : *first;
  const double beyond = std::log(wanted / end.rows);
  const double line =
      first == last ? end.seconds : end.seconds + std::max(0.0, slope(*first, *last)) * (wanted - end.rows);
  return {std::max(line, end.seconds * std::min(1.0, wanted / end.rows)),
          end.variance_now(pace) + (first == last ? kOneCell : kBetweenCells) * beyond * beyond};
}

// Returns line(), but at most the cost of passes of more rows that is known with similar certainty, because fewer rows
// cannot take longer. A higher estimate comes from a moment of high load. Without this limit, the controller would
// avoid this pass and never measure it again.
CostModel::Estimate CostModel::Curve::at(double wanted, const Pace& pace) const {
  constexpr double kAsWell = 1.5;
  Estimate out = line(wanted, pace);
  for (const Cell& cell : cells)
    if (cell.count > 0 && cell.rows > wanted && cell.seconds < out.seconds &&
        cell.variance_now(pace) < kAsWell * out.variance)
      out.seconds = cell.seconds;
  return out;
}

// Combines two estimates of a pass's seconds, one from passes of this batch size and one from passes of all batch
// sizes, each weighted by its certainty.
CostModel::Estimate CostModel::estimate(int batch, double rows, Cap cap) const {
  const auto of = [&](const Curve& curve) {
    return cap == Cap::kYes ? curve.at(rows, target_->pace) : curve.line(rows, target_->pace);
  };
  Estimate all = of(target_->all);
  if (target_->batches.size() <= static_cast<size_t>(batch)) return all;
  const Estimate own = of(target_->batches[batch]);
  if (std::isinf(own.variance)) return all;
  all.variance += kBatchesDiffer;
  const double share = own.variance / (own.variance + all.variance);
  return {own.seconds * std::pow(all.seconds / own.seconds, share), own.variance * (1 - share)};
}

CostModel CostModel::another_draft() const {
  CostModel other;
  other.target_ = target_;
  return other;
}

void CostModel::record_target(int batch, double rows, double seconds) {
  constexpr double kNoiseStep = 0.01;
  if (batch < 1 || !(rows >= 1) || !sane(seconds)) return;
  Target& t = *target_;
  if (t.batches.size() <= static_cast<size_t>(batch)) t.batches.resize(batch + 1);
  const double total = batch * rows;
  const Estimate expected = estimate(batch, total, Cap::kNo);
  t.pace.variance += kPaceStep;
  ++t.pace.passes;
  const bool known_here = t.batches[batch].add(cell_of(batch, total), total, seconds, t.pace),
             known = t.all.add(cell_of(total), total, seconds, t.pace);
  (rows * kCellsPerRow < kCellsPerRow + 0.5 ? t.plain : t.verifying) = true;
  if (!known_here && !known) return;
  const double surprise =
      std::clamp(std::log(seconds / (expected.seconds * t.pace.factor)), -std::log(kMost), std::log(kMost));
  const double all = expected.variance + t.pace.variance + kNoise, weight = t.pace.variance / all;
  t.noise += kNoiseStep * (surprise * surprise / all - t.noise);
  t.pace.factor *= std::exp(weight * surprise);
  t.pace.variance *= 1 - weight;
}

void CostModel::record_draft(int batch, double seconds) {
  if (batch < 1 || !sane(seconds)) return;
  if (draft_.size() <= static_cast<size_t>(batch)) draft_.resize(batch + 1);
  Cell& cell = draft_[batch];
  cell.add(seconds, 0, cell.seconds, target_->pace, {kMostOfDraft, false});
}

void CostModel::record_read(int64_t tokens, double seconds) {
  if (tokens > 0 && sane(seconds))
    read_.add(seconds / static_cast<double>(tokens), 0, read_.seconds, target_->pace, {kMostOfDraft, false});
}

double CostModel::target_seconds(int batch, double rows) const {
  return estimate(batch, rows).seconds * target_->pace.factor;
}

double CostModel::target_doubt(int batch, double rows) const {
  return std::sqrt((estimate(batch, rows).variance + estimate(batch, batch).variance) * target_->noise);
}

int CostModel::draft_basis(int batch) const {
  if (target_->all.measured == 0) return -1;
  return nearest(batch, draft_.size(), [this](int b) { return draft_[b].count > 0; });
}

double CostModel::draft_cost(int batch) const {
  const int b = draft_basis(batch);
  return b < 0 ? kNaN : draft_[b].seconds / estimate(b, b).seconds;
}

double CostModel::draft_seconds(int batch) const { return draft_cost(batch) * verify_seconds(batch, 0); }

double CostModel::read_cost(int batch) const {
  return target_->all.measured == 0 ? 0 : read_.seconds / estimate(batch, batch).seconds;
}

bool CostModel::ready(bool drafting) const {
  const bool drafted =
      !drafting || std::any_of(draft_.begin(), draft_.end(), [](const Cell& c) { return c.count > 0; });
  return drafted && target_->plain && target_->verifying;
}

bool CostModel::is_stale(int batch, int rows, int64_t refresh) const {
  if (target_->batches.size() <= static_cast<size_t>(batch)) return true;
  const Curve& of = target_->batches[batch];
  const size_t at = cell_of(batch, static_cast<double>(batch) * rows);
  if (of.cells.size() <= at) return true;
  return of.cells[at].count < 2 || of.passes - of.cells[at].measured_at >= refresh;
}

// At first allows measurements in two consecutive passes of every 8. After 64 passes, allows them in two of every 64
// (or of every `refresh`, if that is less). The limit is needed because other sequences' K may keep a pass from ever
// having this number of rows.
bool CostModel::should_measure(int batch, int rows, int64_t refresh) const {
  const int64_t passes = target_->batches.size() <= static_cast<size_t>(batch) ? 0 : target_->batches[batch].passes;
  return passes % (passes < 64 ? 8 : std::min<int64_t>(refresh, 64)) < 2 && is_stale(batch, rows, refresh);
}

}  // namespace specdec::decode
