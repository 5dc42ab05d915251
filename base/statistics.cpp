#include "base/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/philox.h"

namespace specdec {

double mean(std::span<const double> x) { return x.empty() ? 0 : std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size()); }

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

// Waudby-Smith & Ramdas 2024 (JRSS B 86), section 4: hedged capital ½ Π(1 + λ⁺(x−m)) + ½ Π(1 − λ⁻(x−m)) with predictable
// plug-in bets (their eq. 26) cut at c/m and c/(1−m). For the true m it is a non-negative martingale that starts at 1, so
// by Ville's inequality it ever reaches 1/level with probability at most `level`.
class BettingSequence {
 public:
  BettingSequence(std::span<const double> x, double level) : x_(x), threshold_(1 / level), bets_(x.size()) {
    double sum = 0.5, squares = 0.25;
    for (size_t i = 0; i < x.size(); ++i) {
      const double t = static_cast<double>(i + 1);
      bets_[i] = std::sqrt(2 * std::log(2 / level) / (squares / t * t * std::log(t + 1)));
      sum += x[i];
      const double centre = sum / (t + 1);
      squares += (x[i] - centre) * (x[i] - centre);
    }
  }

  bool rejects(double m) const {
    constexpr double kCut = 0.75;
    double up = 0.5, down = 0.5;
    for (size_t i = 0; i < x_.size(); ++i) {
      up *= 1 + std::min(bets_[i], kCut / m) * (x_[i] - m);
      down *= 1 - std::min(bets_[i], kCut / (1 - m)) * (x_[i] - m);
      if (up + down >= threshold_) return true;
    }
    return false;
  }

  // The border between a rejected and an accepted value, from the rejected side.
  double border(double rejected, double accepted) const {
    for (int i = 0; i < 12; ++i) {
      const double middle = (rejected + accepted) / 2;
      (rejects(middle) ? rejected : accepted) = middle;
    }
    return rejected;
  }

 private:
  std::span<const double> x_;
  double threshold_;
  std::vector<double> bets_;
};

}  // namespace

Estimate bounded_mean(std::span<const double> x, double level) {
  if (!(level > 0 && level < 1)) throw Error(ErrorKind::kInternal, "bounded_mean: level outside (0, 1)");
  for (double v : x)
    if (!(v >= -1e-6 && v <= 1 + 1e-6)) throw Error(ErrorKind::kInternal, "bounded_mean: value " + std::to_string(v) + " outside [0, 1]");
  if (x.empty()) return {0, {0, 1}, 0};
  std::vector<double> clamped(x.begin(), x.end());
  for (double& v : clamped) v = std::clamp(v, 0.0, 1.0);
  const BettingSequence sequence(clamped, level);
  const double centre = mean(clamped);

  // The accepted set holds the sample mean unless the data drift; its hull is found on the grid from both sides, then refined.
  std::vector<double> candidates = {centre};
  constexpr int kGrid = 1000;
  for (int i = 0; i <= kGrid; ++i) candidates.push_back(static_cast<double>(i) / kGrid);
  std::sort(candidates.begin(), candidates.end());
  const auto accepted = [&](double m) { return !sequence.rejects(m); };
  const auto low = std::find_if(candidates.begin(), candidates.end(), accepted);
  const auto high = std::find_if(candidates.rbegin(), candidates.rend(), accepted);
  Estimate result{centre, {centre, centre}, static_cast<int64_t>(x.size())};
  if (low == candidates.end()) return result;
  result.ci.low = low == candidates.begin() ? 0 : sequence.border(*(low - 1), *low);
  result.ci.high = high == candidates.rbegin() ? 1 : sequence.border(*(high - 1), *high);
  result.ci = {std::min(result.ci.low, centre), std::max(result.ci.high, centre)};
  return result;
}

Estimate bootstrap(size_t num_units, const std::function<double(std::span<const size_t>)>& statistic, double level, int resamples,
                   uint64_t seed) {
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

// Q(a, x) = Γ(a, x) / Γ(a): the series of Abramowitz & Stegun 6.5.29 below x = a + 1, the continued fraction 6.5.31 above.
double chi_square_p_value(double statistic, double df) {
  if (!(df > 0) || !(statistic >= 0)) throw Error(ErrorKind::kInternal, "chi-square: needs df > 0 and a statistic >= 0");
  const double a = df / 2, x = statistic / 2;
  if (x == 0) return 1;
  if (std::isinf(x)) return 0;
  const double scale = std::exp(a * std::log(x) - x - std::lgamma(a));
  constexpr double kPrecision = 1e-15;
  constexpr int kMaxTerms = 100000;
  if (x < a + 1) {
    double term = 1 / a, sum = term;
    for (int n = 1; n < kMaxTerms && term > sum * kPrecision; ++n) sum += term *= x / (a + n);
    return std::clamp(1 - sum * scale, 0.0, 1.0);
  }
  constexpr double kTiny = 1e-300;  // modified Lentz
  double b = x + 1 - a, c = 1 / kTiny, d = 1 / b, fraction = d;
  for (int n = 1; n < kMaxTerms; ++n) {
    const double an = -n * (n - a);
    b += 2;
    d = an * d + b;
    d = 1 / (std::abs(d) < kTiny ? kTiny : d);
    c = b + an / c;
    if (std::abs(c) < kTiny) c = kTiny;
    fraction *= c * d;
    if (std::abs(c * d - 1) < kPrecision) break;
  }
  return std::clamp(fraction * scale, 0.0, 1.0);
}

}  // namespace specdec
