#include "base/statistics.h"

#include <algorithm>
#include <boost/math/special_functions/gamma.hpp>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace specdec {

double mean(std::span<const double> x) {
  return x.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}

double variance(std::span<const double> x) {
  if (x.size() < 2) return 0;
  const double m = mean(x);
  double sum = 0;
  for (double v : x) sum += (v - m) * (v - m);
  return sum / static_cast<double>(x.size() - 1);
}

double quantile(std::vector<double> x, double q) {
  if (x.empty() || !(q >= 0 && q <= 1)) throw Error(ErrorKind::kInternal, "quantile of no values, or outside [0, 1]");
  std::sort(x.begin(), x.end());
  const double at = q * static_cast<double>(x.size() - 1);
  const size_t low = static_cast<size_t>(at);
  return low + 1 < x.size() ? x[low] + (at - static_cast<double>(low)) * (x[low + 1] - x[low]) : x.back();
}

namespace {

// The capitals of a ConfidenceSequence (products over all values seen) are kept at or above this value. Smaller numbers
// would become denormal, which processors multiply slowly.
constexpr double kLeastCapital = 1e-200;

double bounded(double x) {
  if (!(x >= -1e-6 && x <= 1 + 1e-6))
    throw Error(ErrorKind::kInternal, "confidence sequence: value " + std::to_string(x) + " outside [0, 1]");
  return std::clamp(x, 0.0, 1.0);
}

// Computes capital[i] *= base + slope[i] · x in blocks of constant length, which compilers vectorise.
void grow(std::span<double> capital, const double* slope, double base, double x) {
  constexpr size_t kBlock = 8;
  size_t i = 0;
  for (; i + kBlock <= capital.size(); i += kBlock)
    for (size_t j = 0; j < kBlock; ++j)
      capital[i + j] = std::max(capital[i + j] * (base + slope[i + j] * x), kLeastCapital);
  for (; i < capital.size(); ++i) capital[i] = std::max(capital[i] * (base + slope[i] * x), kLeastCapital);
}

}  // namespace

ConfidenceSequence::ConfidenceSequence(const ConfidenceOptions& options)
    : options_(options), step_(1.0 / options.breaks), threshold_(2 / options.level) {
  const auto proper = [](double share) { return share > 0 && share < 1; };
  if (!proper(options.level) || options.breaks < 2 || options.breaks > 100000 || !proper(options.truncation) ||
      options.stakes.size() + options.plug_in == 0 ||
      !std::all_of(options.stakes.begin(), options.stakes.end(), proper))
    throw Error(
        ErrorKind::kInternal,
        "confidence sequence: expected a level, stakes and a truncation in (0, 1), a bet, and 2 to 100000 breaks");
  const size_t candidates = static_cast<size_t>(options.breaks) + 1, bets = options.stakes.size() + options.plug_in;
  up_.assign(bets * candidates, 1);
  down_ = up_;
  for (const double stake : options.stakes)
    for (size_t i = 0; i < candidates; ++i) {
      // The bet on the candidate mean m is stake/m or stake/(1 − m), which is infinite at m = 0 or m = 1. So its
      // divisor is at least 1e-9. This cannot change the interval, because each end of the interval is the first
      // refuted candidate on its side, or 0 or 1.
      bet_up_.push_back(stake / std::max(static_cast<double>(i) * step_, 1e-9));
      bet_down_.push_back(stake / std::max(1 - static_cast<double>(i) * step_, 1e-9));
    }
}

double ConfidenceSequence::capital(const std::vector<double>& of, size_t candidate) const {
  const size_t candidates = static_cast<size_t>(options_.breaks) + 1;
  double sum = 0;
  for (size_t at = candidate; at < of.size(); at += candidates) sum += of[at];
  return sum * static_cast<double>(candidates) / static_cast<double>(of.size());
}

void ConfidenceSequence::observe(double value) {
  const double x = bounded(value);
  const size_t candidates = static_cast<size_t>(options_.breaks) + 1, constant = bet_up_.size();
  // A capital is multiplied by 1 + λ(x − m) or by 1 − λ'(x − m). With λ = stake/m, 1 + λ(x − m) = 1 − stake + λx. With
  // λ' = stake/(1 − m), 1 − λ'(x − m) = 1 − stake + λ'(1 − x).
  for (size_t bet = 0; bet < options_.stakes.size(); ++bet) {
    const size_t from = bet * candidates;
    grow(std::span(up_).subspan(from, candidates), &bet_up_[from], 1 - options_.stakes[bet], x);
    grow(std::span(down_).subspan(from, candidates), &bet_down_[from], 1 - options_.stakes[bet], 1 - x);
  }
  ++n_;
  sum_ += x;
  if (options_.plug_in) {
    const double t = static_cast<double>(n_),
                 bet = std::sqrt(2 * std::log(2 / options_.level) / (std::log(t + 1) * squares_));
    double *up = up_.data() + constant, *down = down_.data() + constant;
    for (size_t i = 0; i < candidates; ++i) {
      const double m = static_cast<double>(static_cast<int>(i)) * step_;
      up[i] = std::max(up[i] * (1 + std::min(bet, options_.truncation / m) * (x - m)), kLeastCapital);
      down[i] = std::max(down[i] * (1 - std::min(bet, options_.truncation / (1 - m)) * (x - m)), kLeastCapital);
    }
    regular_sum_ += x;
    const double centre = regular_sum_ / (t + 1);
    squares_ += (x - centre) * (x - centre);
  }
  // As the candidate mean m grows, its capital up(m) falls and down(m) rises, so the candidates that are not refuted
  // form a range [first, last), possibly empty.
  size_t first = 0, last = candidates;
  for (size_t end = candidates; first < end;) {
    const size_t middle = (first + end) / 2;
    capital(up_, middle) > threshold_ ? first = middle + 1 : end = middle;
  }
  for (size_t begin = 0; begin < last;) {
    const size_t middle = (begin + last) / 2;
    capital(down_, middle) > threshold_ ? last = middle : begin = middle + 1;
  }
  if (first >= last) return;
  ci_.low = std::max(ci_.low, (static_cast<double>(first) - 1) * step_);
  ci_.high = std::min(ci_.high, static_cast<double>(last) * step_);
}

Estimate ConfidenceSequence::estimate() const {
  if (n_ == 0) return {0, {0, 1}, 0};
  const double value = sum_ / static_cast<double>(n_);
  return {value, {std::min(ci_.low, value), std::max(ci_.high, value)}, n_};
}

Estimate bounded_mean(std::span<const double> x, double level) {
  ConfidenceOptions options;
  options.level = level;
  ConfidenceSequence sequence(options);
  for (const double v : x) sequence.observe(v);
  return sequence.estimate();
}

Estimate bootstrap(size_t num_units, const std::function<double(std::span<const size_t>)>& statistic, double level,
                   int resamples, uint64_t seed) {
  if (num_units == 0 || resamples < 1) throw Error(ErrorKind::kInternal, "bootstrap of no units or with no resamples");
  std::vector<size_t> units(num_units);
  std::iota(units.begin(), units.end(), size_t{0});
  const double value = statistic(units);
  PhiloxStream random(seed, /*stream=*/0x626f6f74);
  std::vector<double> draws(static_cast<size_t>(resamples));
  for (double& draw : draws) {
    for (size_t& unit : units) unit = random.below(num_units);
    draw = statistic(units);
  }
  return {value, {quantile(draws, level / 2), quantile(draws, 1 - level / 2)}, static_cast<int64_t>(num_units)};
}

double chi_square_p_value(double statistic, double df) {
  if (!(df > 0) || !(statistic >= 0))
    throw Error(ErrorKind::kInternal, "chi-square: needs df > 0 and a statistic >= 0");
  return std::isinf(statistic) ? 0 : boost::math::gamma_q(df / 2, statistic / 2);
}

}  // namespace specdec
