// Toys for exact tests: a CausalModel whose logits are a given function of the context, and a Randomness that
// enumerates every possible outcome. Each run has one outcome; the next run repeats its first choices and changes a
// later one.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <stdexcept>
#include <vector>

#include "base/philox.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/decode/sampling/randomness.h"

namespace specdec::decode::toy {

using Tokens = std::vector<int32_t>;

// A model that computes the logits of the next token by calling `logits` with all previous tokens, including the
// prompt. A sequence's "cache" is the list of its tokens. Counts the passes.
class Model final : public CausalModel {
 public:
  using Logits = std::function<void(std::span<const int32_t> context, std::span<float> logits)>;
  Model(int64_t vocab, Logits logits, int64_t max_length = 1 << 20)
      : vocab_(vocab), max_length_(max_length), logits_(std::move(logits)) {}

  int64_t vocab_size() const override { return vocab_; }
  int64_t max_length() const override { return max_length_; }
  SequenceId open() override {
    caches_[next_];
    return next_++;
  }
  SequenceId fork(SequenceId id, int64_t length) override {
    if (length < 0 || length > this->length(id)) throw std::logic_error("fork of more than the cache holds");
    if (before_fork) before_fork(length);
    caches_[next_].assign(caches_.at(id).begin(), caches_.at(id).begin() + length);
    return next_++;
  }
  void close(SequenceId id) override {
    if (caches_.erase(id) != 1) throw std::logic_error("closed twice");
  }
  int64_t length(SequenceId id) const override { return static_cast<int64_t>(caches_.at(id).size()); }
  void truncate(SequenceId id, int64_t length) override {
    if (length < 0 || length > this->length(id)) throw std::logic_error("truncate to a longer cache");
    caches_.at(id).resize(static_cast<size_t>(length));
  }
  void keep(SequenceId id, int64_t length, std::span<const int64_t> places) override {
    Tokens& cache = caches_.at(id);
    Tokens kept(cache.begin(), cache.begin() + length);
    for (const int64_t place : places) {
      if (place < static_cast<int64_t>(kept.size())) throw std::logic_error("kept in another order");
      kept.push_back(cache.at(static_cast<size_t>(place)));
    }
    cache = std::move(kept);
  }
  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    ++passes;
    if (before_pass) before_pass(extensions);
    out.vocab = vocab_;
    int64_t rows = 0;
    for (const Extension& e : extensions) rows += e.num_logits;
    out.data.resize(std::max(out.data.size(), static_cast<size_t>(rows * vocab_)));
    int64_t row = 0;
    for (const Extension& e : extensions) {
      Tokens& cache = caches_.at(e.sequence);
      if (e.tokens.empty()) throw std::logic_error("empty extension");
      const Tokens before = cache;
      std::vector<Tokens> contexts;
      for (size_t i = 0; i < e.tokens.size(); ++i) {
        cache.push_back(e.tokens[i]);
        const int32_t parent = e.parents.empty() ? static_cast<int32_t>(i) - 1 : e.parents[i];
        contexts.push_back(parent < 0 ? before : contexts.at(static_cast<size_t>(parent)));
        contexts.back().push_back(e.tokens[i]);
        if (static_cast<int64_t>(contexts.back().size()) > max_length_)
          throw std::logic_error("text longer than the model allows");
        if (i + static_cast<size_t>(e.num_logits) >= e.tokens.size()) logits_(contexts.back(), out.row(row++));
      }
    }
  }

  const Tokens& cache(SequenceId id) const { return caches_.at(id); }
  size_t open_sequences() const { return caches_.size(); }
  int64_t held() const {  // number of tokens in all caches together
    int64_t tokens = 0;
    for (const auto& [id, cache] : caches_) tokens += static_cast<int64_t>(cache.size());
    return tokens;
  }

  int64_t passes = 0;
  std::function<void(std::span<const Extension>)> before_pass;  // if set, called before each pass; may throw
  std::function<void(int64_t length)> before_fork;              // if set, called before each fork; may throw

 private:
  int64_t vocab_, max_length_;
  Logits logits_;
  std::map<SequenceId, Tokens> caches_;
  SequenceId next_ = 0;
};

// Returns pseudo-random logits in [-spread, spread], determined by (seed, context).
inline Model::Logits random_logits(uint64_t seed, double spread = 2.0) {
  return [seed, spread](std::span<const int32_t> context, std::span<float> logits) {
    uint64_t hash = 1469598103934665603ull;
    for (const int32_t t : context) hash = (hash ^ static_cast<uint64_t>(t + 1)) * 1099511628211ull;
    for (size_t i = 0; i < logits.size(); ++i)
      logits[i] = static_cast<float>(spread * (2 * philox_uniform(seed, hash, i) - 1));
  };
}

// Visits all outcomes of a run depth first. Call begin() before and advance() after each run, until advance() returns
// false because there is no further outcome. weight() is the probability of the run's outcome.
class Enumerator final : public Randomness {
 public:
  void begin() {
    depth_ = 0;
    weight_ = 1;
  }
  double weight() const { return weight_; }
  bool advance() {
    while (!path_.empty() && path_.back().index + 1 == path_.back().count) path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().index;
    return true;
  }

  int32_t draw(Purpose, std::span<const float> weights) override {
    double total = 0;
    std::vector<int32_t> ids;
    for (size_t i = 0; i < weights.size(); ++i) {
      total += weights[i];
      if (weights[i] > 0) ids.push_back(static_cast<int32_t>(i));
    }
    if (ids.empty()) throw std::logic_error("draw from nothing");
    const int32_t id = ids[choose(ids.size())];
    weight_ *= weights[id] / total;
    return id;
  }
  int32_t draw_at(int64_t, std::span<const float>) override {
    throw std::logic_error("shared noise has no outcomes to walk");
  }
  bool accept(Purpose, double probability) override {
    if (probability >= 1) return true;
    if (!(probability > 0)) return false;
    const bool yes = choose(2) == 0;
    weight_ *= yes ? probability : 1 - probability;
    return yes;
  }

 private:
  struct Choice {
    size_t index, count;
  };
  size_t choose(size_t count) {
    if (depth_ == path_.size()) path_.push_back({0, count});
    if (path_[depth_].count != count) throw std::logic_error("the code under test is not a function of its choices");
    return path_[depth_++].index;
  }

  std::vector<Choice> path_;
  size_t depth_ = 0;
  double weight_ = 1;
};

}  // namespace specdec::decode::toy
