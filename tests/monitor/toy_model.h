// A fake model that answers eight one-character prompts with log-probabilities. Each prompt has fixed random logits of
// 60 tokens. A simulated fine-tuning adds normal random numbers to the logits once (standard deviation `step`), and
// each call adds serving noise (standard deviation `noise`).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "base/philox.h"
#include "monitor/statistics/exchangeable.h"

namespace specdec::monitor {

class ToyModel {
 public:
  // Returns the index of a prompt in the monitor's list of eight prompts, or 8 if the list does not contain it.
  static size_t prompt_index(const std::string& prompt) {
    static const std::vector<std::string> kPrompts = {"a", "I", "1", "{", "#", "T", "é", "中"};
    return static_cast<size_t>(std::find(kPrompts.begin(), kPrompts.end(), prompt) - kPrompts.begin());
  }

  explicit ToyModel(int seed, double step = 0, double noise = 0.02)
      : noise_(noise), stream_(static_cast<uint64_t>(seed), step == 0 ? 1 : 2) {
    PhiloxStream base(static_cast<uint64_t>(seed), 3), change(static_cast<uint64_t>(seed), 4);
    for (auto& logits : logits_)
      for (double& x : logits) x = 2 * normal(base) + step * normal(change);
  }

  TopLogprobs call(size_t prompt) {
    ++requests_;
    std::vector<double> x(logits_.at(prompt).begin(), logits_.at(prompt).end());
    for (double& v : x) v += noise_ * normal(stream_);
    const double most = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double v : x) sum += std::exp(v - most);
    std::vector<size_t> order(x.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::partial_sort(order.begin(), order.begin() + 20, order.end(), [&](size_t a, size_t b) { return x[a] > x[b]; });
    TopLogprobs top;
    for (size_t i = 0; i < 20; ++i)
      top.emplace_back("t" + std::to_string(order[i]), static_cast<float>(x[order[i]] - most - std::log(sum)));
    return top;
  }
  LogprobCalls look(int calls) {
    LogprobCalls all(logits_.size());
    for (int i = 0; i < calls; ++i)
      for (size_t p = 0; p < all.size(); ++p) all[p].push_back(call(p));
    return all;
  }
  int requests() const { return requests_; }

 private:
  static double normal(PhiloxStream& stream) {
    const double u = stream.uniform();
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * stream.uniform());
  }

  std::array<std::array<double, 60>, 8> logits_;
  double noise_;
  PhiloxStream stream_;
  int requests_ = 0;
};

}  // namespace specdec::monitor
