#include "monitor/statistics/exchangeable.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>

namespace specdec::monitor {

namespace {

constexpr size_t kMostTokens = 32;

// The calls of one prompt: one row of log-probabilities per call. The rows of the earlier calls (the pool) come first,
// then those of the newest calls.
struct Rows {
  size_t pool = 0, newest = 0, width = 0;
  std::vector<float> x;
  std::vector<double> total;

  const float* row(size_t i) const { return x.data() + i * width; }
  size_t size() const { return pool + newest; }
};

Rows rows_of(const std::vector<TopLogprobs>& pool, const std::vector<TopLogprobs>& newest) {
  Rows rows;
  rows.pool = pool.size();
  rows.newest = newest.size();
  std::vector<const TopLogprobs*> calls;
  for (const auto* part : {&pool, &newest})
    for (const TopLogprobs& call : *part) calls.push_back(&call);
  std::unordered_map<std::string, size_t> seen;
  for (const TopLogprobs* call : calls)
    for (const auto& [token, logprob] : *call) ++seen[token];
  std::vector<std::pair<size_t, std::string>> tokens;
  for (const auto& [token, n] : seen) tokens.emplace_back(calls.size() - n, token);
  std::sort(tokens.begin(), tokens.end());
  tokens.resize(std::min(tokens.size(), kMostTokens));
  rows.width = tokens.size();
  rows.total.assign(rows.width, 0);
  std::unordered_map<std::string, size_t> column;
  for (size_t c = 0; c < rows.width; ++c) column[tokens[c].second] = c;
  for (const TopLogprobs* call : calls) {
    const float least = std::min_element(call->begin(), call->end(), [](const auto& a, const auto& b) {
                          return a.second < b.second;
                        })->second;
    const size_t row = rows.x.size();
    rows.x.resize(row + rows.width, least);
    for (const auto& [token, logprob] : *call)
      if (const auto c = column.find(token); c != column.end()) rows.x[row + c->second] = logprob;
    for (size_t c = 0; c < rows.width; ++c) rows.total[c] += rows.x[row + c];
  }
  return rows;
}

// Returns Σ over tokens of |mean of the first rows.newest rows in `order` − mean of the other rows|.
double difference(const Rows& rows, const std::vector<uint32_t>& order) {
  double sum[kMostTokens] = {};
  for (size_t i = 0; i < rows.newest; ++i) {
    const float* x = rows.row(order[i]);
    for (size_t c = 0; c < rows.width; ++c) sum[c] += x[c];
  }
  double d = 0;
  for (size_t c = 0; c < rows.width; ++c)
    d +=
        std::abs(sum[c] / static_cast<double>(rows.newest) - (rows.total[c] - sum[c]) / static_cast<double>(rows.pool));
  return d;
}

// Partially shuffles `order`, so that its first `n` entries are a uniformly random subset.
void choose(std::vector<uint32_t>& order, size_t n, PhiloxStream& stream) {
  for (size_t i = 0; i < n; ++i) std::swap(order[i], order[i + stream.below(order.size() - i)]);
}

// Projects each newest call onto the line from the mean of the earlier calls (0) to the mean of the newest calls (1).
std::vector<double> places(const Rows& rows) {
  std::vector<double> mean(rows.width, 0), way(rows.width, 0);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t c = 0; c < rows.width; ++c)
      (i < rows.pool ? mean : way)[c] += rows.row(i)[c] / static_cast<double>(i < rows.pool ? rows.pool : rows.newest);
  double length = 0;
  for (size_t c = 0; c < rows.width; ++c) {
    way[c] -= mean[c];
    length += way[c] * way[c];
  }
  std::vector<double> at;
  for (size_t i = rows.pool; i < rows.size(); ++i) {
    double x = 0;
    for (size_t c = 0; c < rows.width; ++c) x += (rows.row(i)[c] - mean[c]) * way[c];
    at.push_back(length > 0 ? x / length : 0);
  }
  return at;
}

// Splits the values into two groups, one of which lies at 0, by least squares. Each group has at least a tenth of the
// values, and at least two. Returns the share of the values in the group that does not lie at 0, or 0 if the groups are
// not clearly apart: Ashman's D = √2 |μ₁ − μ₂| / √(σ₁² + σ₂²) must be at least 4 (Ashman, Bird, Zepf, AJ 1994, ask for
// 2; the halves of a normal distribution have 2.6).
double second_group(std::vector<double> x) {
  constexpr double kApart = 4, kAtZero = 0.35;
  std::sort(x.begin(), x.end());
  const size_t n = x.size(), fewest = std::max<size_t>(2, (n + 9) / 10);
  std::vector<double> sum(n + 1, 0), squares(n + 1, 0);
  for (size_t i = 0; i < n; ++i) {
    sum[i + 1] = sum[i] + x[i];
    squares[i + 1] = squares[i] + x[i] * x[i];
  }
  double least = std::numeric_limits<double>::infinity(), share = 0;
  for (size_t k = fewest; k + fewest <= n; ++k) {
    const double a = static_cast<double>(k), b = static_cast<double>(n - k);
    const double low = sum[k] / a, high = (sum[n] - sum[k]) / b;
    const double within_low = squares[k] - a * low * low, within_high = squares[n] - squares[k] - b * high * high;
    if (within_low + within_high >= least) continue;
    least = within_low + within_high;
    const double apart = std::sqrt(2.0) * (high - low) / std::sqrt(std::max(1e-12, within_low / a + within_high / b));
    share = apart >= kApart && std::abs(low) <= kAtZero * high ? b / static_cast<double>(n) : 0;
  }
  return share;
}

// Sets out.two_modes if, for at least half of the prompts, some calls have changed and others have not. If one changed
// model answers some prompts as before, no prompt has two such groups.
void find_modes(const std::vector<Rows>& prompts, Comparison& out) {
  size_t mixed = 0;
  double shares = 0;
  for (const Rows& rows : prompts) {
    const double share = second_group(places(rows));
    mixed += share > 0;
    shares += share;
  }
  out.two_modes = 2 * mixed >= prompts.size();
  if (out.two_modes) out.share_changed = shares / static_cast<double>(mixed);
}

size_t common_part(const std::string& a, const std::string& b) {
  const auto [end, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<size_t>(end - a.begin());
}

template <class T>
std::vector<T> subset(std::vector<T> all, size_t keep, PhiloxStream& stream) {
  if (all.size() <= keep) return all;
  for (size_t i = 0; i < keep; ++i) std::swap(all[i], all[i + stream.below(all.size() - i)]);
  all.resize(keep);
  return all;
}

}  // namespace

Comparison compare(const LogprobCalls& pool, const LogprobCalls& newest, int permutations, PhiloxStream& stream) {
  std::vector<Rows> prompts;
  size_t tokens = 0;
  for (size_t i = 0; i < pool.size(); ++i) {
    prompts.push_back(rows_of(pool[i], newest[i]));
    tokens += prompts.back().width;
  }
  std::vector<std::vector<uint32_t>> orders;
  Comparison out;
  for (const Rows& rows : prompts) {
    std::vector<uint32_t> order(rows.size());
    // The first order is the true division into newest and earlier calls: the newest calls come first.
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>((i + rows.pool) % rows.size());
    out.statistic += difference(rows, order);
    orders.push_back(std::move(order));
  }
  int extreme = 0;
  for (int b = 0; b < permutations; ++b) {
    double d = 0;
    for (size_t i = 0; i < prompts.size(); ++i) {
      choose(orders[i], prompts[i].newest, stream);
      d += difference(prompts[i], orders[i]);
    }
    extreme += d >= out.statistic * (1 - 1e-9);
  }
  out.p = (1.0 + extreme) / (1.0 + permutations);
  out.statistic /= static_cast<double>(std::max<size_t>(1, tokens));
  find_modes(prompts, out);
  return out;
}

Comparison compare(const Texts& pool, const std::vector<std::string>& newest, int permutations, PhiloxStream& stream) {
  // likeness[prompt][text] is the mean length of the common prefix, as a fraction, of this text with the other texts of
  // the prompt. Text 0 is the newest.
  std::vector<std::vector<double>> likeness(pool.size());
  double seen = 0;
  size_t changed = 0;
  for (size_t i = 0; i < pool.size(); ++i) {
    std::vector<const std::string*> texts = {&newest[i]};
    for (const std::string& text : pool[i]) texts.push_back(&text);
    for (const std::string* a : texts) {
      double sum = 0;
      for (const std::string* b : texts) {
        if (a == b) continue;
        const size_t longest = std::max(a->size(), b->size());
        sum += longest == 0 ? 1 : static_cast<double>(common_part(*a, *b)) / static_cast<double>(longest);
      }
      likeness[i].push_back(sum / static_cast<double>(texts.size() - 1));
    }
    seen += likeness[i][0];
    changed += likeness[i][0] < *std::min_element(likeness[i].begin() + 1, likeness[i].end());
  }
  int extreme = 0;
  for (int b = 0; b < permutations; ++b) {
    double sum = 0;
    for (const auto& of : likeness) sum += of[stream.below(of.size())];
    extreme += sum <= seen * (1 + 1e-9);
  }
  const double n = static_cast<double>(std::max<size_t>(1, pool.size()));
  return {1 - seen / n, (1.0 + extreme) / (1.0 + permutations), static_cast<double>(changed) / n, false};
}

double e_value(double p, int permutations) {
  const double all = permutations + 1.0;
  return (p <= (1 + 1e-9) / all ? 0.5 * all : 0) + 0.25 / std::sqrt(p);
}

double next_log_m(double log_m, double e) {
  return std::max(log_m, 0.0) + std::log1p(std::exp(-std::abs(log_m))) + std::log(e);
}

LogprobCalls thin(const LogprobCalls& pool, const LogprobCalls& newest, size_t keep, PhiloxStream& stream) {
  LogprobCalls kept;
  for (size_t i = 0; i < pool.size(); ++i) {
    auto all = pool[i];
    all.insert(all.end(), newest[i].begin(), newest[i].end());
    kept.push_back(subset(std::move(all), keep, stream));
  }
  return kept;
}

Texts thin(const Texts& pool, const std::vector<std::string>& newest, size_t keep, PhiloxStream& stream) {
  Texts kept;
  for (size_t i = 0; i < pool.size(); ++i) {
    auto all = pool[i];
    all.push_back(newest[i]);
    kept.push_back(subset(std::move(all), keep, stream));
  }
  return kept;
}

}  // namespace specdec::monitor
