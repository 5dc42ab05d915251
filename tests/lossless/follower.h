// A toy draft that reads hidden states of its target, as an EAGLE-3 head does. Its distributions depend on these
// states: the state for a row of the text comes only from the target's pass over the previous token, and the state for
// a drafted row is computed from the previous row. Reading a state that does not exist throws std::logic_error.
#pragma once

#include "tests/lossless/toy.h"

namespace specdec::decode::toy {

class Follower final : public CausalModel {
 public:
  Follower(Model& target, uint64_t seed) : target_(target), seed_(seed) {}

  int64_t vocab_size() const override { return target_.vocab_size(); }
  int64_t max_length() const override { return target_.max_length(); }
  bool reads_states() const override { return true; }
  SequenceId open() override {
    caches_[next_];
    return next_++;
  }
  SequenceId fork(SequenceId id, int64_t length) override {
    const Cache& from = caches_.at(id);
    Cache to;
    to.text.assign(from.text.begin(), from.text.begin() + std::min(length, static_cast<int64_t>(from.text.size())));
    caches_[next_] = to;
    return next_++;
  }
  void close(SequenceId id) override {
    if (caches_.erase(id) != 1) throw std::logic_error("closed twice");
  }
  int64_t length(SequenceId id) const override {
    const Cache& cache = caches_.at(id);
    return static_cast<int64_t>(cache.text.size()) + cache.cached;
  }
  void truncate(SequenceId id, int64_t length) override {
    Cache& cache = caches_.at(id);
    const auto text = static_cast<int64_t>(cache.text.size());
    if (length > text + cache.cached) throw std::logic_error("truncate to a longer cache");
    cache.cached = std::max<int64_t>(0, length - text);
    if (length >= text) return;
    cache.text.resize(static_cast<size_t>(length));
    cache.nodes.clear();
  }
  void keep(SequenceId, int64_t, std::span<const int64_t>) override {
    throw std::logic_error("drafted rows are kept as if they were text");
  }
  int64_t follow(SequenceId id, SequenceId target) override {
    Cache& cache = caches_.at(id);
    if (cache.target != target) cache.target = target, cache.since = target_.length(target);
    // The target stores only the states of positions that it ran after the draft began to follow. To read the next
    // token, the draft needs the state of the position before that token.
    const auto read = static_cast<int64_t>(cache.text.size());
    if (std::max<int64_t>(read - 1, 0) < cache.since) return read;
    const int64_t passed = target_.length(target);
    return passed == 0 ? 0 : passed + 1;
  }
  void extend(std::span<const Extension> extensions, LogitRows& out) override {
    ++passes;
    out.vocab = vocab_size();
    int64_t rows = 0;
    for (const Extension& e : extensions) rows += e.num_logits;
    out.data.resize(std::max(out.data.size(), static_cast<size_t>(rows * out.vocab)));
    int64_t row = 0;
    for (const Extension& e : extensions)
      for (const uint64_t state : read(e))
        for (std::span<float> logits = out.row(row++); float& l : logits)
          l = static_cast<float>(4 * philox_uniform(seed_, state, static_cast<uint64_t>(&l - logits.data())) - 2);
  }

  int64_t passes = 0;

 private:
  struct Node {
    int32_t token, parent;
    uint64_t state;
  };
  struct Cache {
    Tokens text;
    std::vector<Node> nodes;
    int64_t cached = 0;  // number of nodes in the cache
    SequenceId target = -1;
    int64_t since = 0;
  };

  static uint64_t mix(uint64_t state, uint64_t value) { return ((state ^ value) + 1) * 1099511628211ull; }
  // Returns the state of the last token of a text, given the target's states of the tokens before it.
  static uint64_t text_state(const Tokens& text) {
    uint64_t state = 1469598103934665603ull;
    for (const int32_t token : text) state = mix(state, static_cast<uint64_t>(token));
    return state;
  }

  // Returns the states of those rows of an extension that need logits.
  std::vector<uint64_t> read(const Extension& e) {
    Cache& cache = caches_.at(e.sequence);
    const auto count = static_cast<int64_t>(e.tokens.size()), text = static_cast<int64_t>(cache.text.size());
    std::vector<uint64_t> states;
    const int64_t can = cache.target < 0 ? 0 : follow(e.sequence, cache.target);
    if (e.parents.empty() && cache.cached == 0 && text + count <= can) {
      for (const int32_t token : e.tokens) {
        cache.text.push_back(token);
        states.push_back(text_state(cache.text));
      }
      cache.nodes.clear();
      if (text == 0 && e.num_logits == count) throw std::logic_error("logits after the first token");
    } else {
      if (e.parents.empty() ? count != 1 : cache.cached != 0) throw std::logic_error("a draft that skips a level");
      std::vector<Node> nodes(cache.nodes.begin(), cache.nodes.begin() + cache.cached);
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        const int32_t parent = e.parents.empty() ? static_cast<int32_t>(cache.cached) - 1 : e.parents[at];
        if (parent >= static_cast<int32_t>(cache.nodes.size())) throw std::logic_error("no state to draft from");
        if (parent >= 0 && !e.parents.empty() &&
            (cache.nodes[static_cast<size_t>(parent)].token != e.tokens[static_cast<size_t>(parent)] ||
             cache.nodes[static_cast<size_t>(parent)].parent != e.parents[static_cast<size_t>(parent)]))
          throw std::logic_error("the state of another token");
        const uint64_t from =
            parent < 0 ? mix(text_state(cache.text), 77) : cache.nodes[static_cast<size_t>(parent)].state;
        nodes.push_back({e.tokens[at], parent, mix(mix(from, 13), static_cast<uint64_t>(e.tokens[at]))});
        states.push_back(nodes.back().state);
      }
      cache.nodes = std::move(nodes);
      cache.cached += count;
    }
    states.erase(states.begin(), states.end() - e.num_logits);
    return states;
  }

  Model& target_;
  uint64_t seed_;
  std::map<SequenceId, Cache> caches_;
  SequenceId next_ = 0;
};

}  // namespace specdec::decode::toy
