// The interface between decoding and the source of logits: a real decoder (model_runner.h), or a table in tests.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace specdec::decode {

using SequenceId = int64_t;

struct Extension {
  SequenceId sequence = 0;
  std::span<const int32_t> tokens;  // tokens to append to the sequence; at least one
  int64_t num_logits = 1;           // number of logits rows to return, for the last tokens; 0: none
  // For a tree: parents[i] < i is the index in `tokens` of the parent of token i, or −1 if token i follows the cached
  // text. Empty for a chain, in which each token follows the previous one.
  std::span<const int32_t> parents = {};
};

// fp32 logits on the host, row-major [rows, vocab]. The step reuses the buffer, so that a warm step allocates nothing.
struct LogitRows {
  std::vector<float> data;
  int64_t vocab = 0;
  std::span<const float> row(int64_t i) const { return {data.data() + i * vocab, static_cast<size_t>(vocab)}; }
  std::span<float> row(int64_t i) { return {data.data() + i * vocab, static_cast<size_t>(vocab)}; }
};

// Thrown by extend() and fork(), before they write anything, if this model's caches are full. Closing sequences frees
// memory.
class CacheFull : public Error {
 public:
  explicit CacheFull(const std::string& what) : Error(ErrorKind::kDevice, what) {}
};

// The memory of a model's caches, and how many prompt tokens adopt() searched for and found in cached blocks.
struct CacheCounts {
  int64_t budget_bytes = 0;  // 0: no limit
  int64_t held_bytes = 0;    // bytes held by open sequences
  int64_t kept_bytes = 0;    // bytes of blocks that no sequence holds, kept for reuse until the memory is needed
  int64_t asked_tokens = 0, found_tokens = 0;  // totals over all calls of adopt()
};

class RoundRunner;  // decode/round/round.h

class CausalModel {
 public:
  virtual ~CausalModel() = default;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_length() const = 0;
  // Returns the total number of tokens for which the caches of all sequences have room.
  virtual int64_t capacity_tokens() const { return std::numeric_limits<int64_t>::max(); }
  virtual SequenceId open() = 0;
  // Opens a new sequence whose cache holds the first `length` tokens of `sequence`, which must hold at least that many.
  virtual SequenceId fork(SequenceId sequence, int64_t length) = 0;
  virtual void close(SequenceId sequence) = 0;
  virtual int64_t length(SequenceId sequence) const = 0;
  virtual void truncate(SequenceId sequence, int64_t length) = 0;
  // Keeps one path of a tree: the first `length` tokens of the cache, then the tokens at the indices `places`, which
  // ascend and are at least `length`.
  virtual void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) = 0;
  // Runs one pass over all extensions. `out` gets Σ num_logits rows, in the order of the extensions.
  virtual void extend(std::span<const Extension> extensions, LogitRows& out) = 0;
  // Fills an empty sequence from this tenant's cached blocks, which may come from open or closed sequences. Also makes
  // the blocks of this sequence reusable from then on. Returns the number of tokens found.
  virtual int64_t adopt(SequenceId, std::span<const int32_t>, uint64_t /*tenant*/) { return 0; }
  // Returns a lower bound on the number of tokens that adopt() would find, because blocks that only open sequences hold
  // may not be counted. Changes nothing.
  virtual int64_t cached_prefix_tokens(std::span<const int32_t>, uint64_t /*tenant*/) const { return 0; }
  virtual CacheCounts cache_counts() const { return {}; }
  // Returns whether this is a draft that reads hidden states of its target (an EAGLE-3 head). The caller must link each
  // of its sequences to the target's sequence of the same text with follow(). The draft reads each token of the text
  // with the target's hidden state of the previous token, and each drafted token with its own state. After verification
  // it must read the accepted tokens again with the target's states. The caller therefore drops drafted tokens with
  // truncate(), which for this kind of draft accepts any length.
  virtual bool reads_states() const { return false; }
  // Links a sequence to the target's sequence of the same text. From then on the target stores the hidden states that
  // the draft has not read. May be called again. Returns how many tokens of the text the draft can read now; it can
  // draft only if it can read the whole text. The target's earlier states are not stored: if the draft has not read
  // them, it can never read the whole text.
  virtual int64_t follow(SequenceId, SequenceId /*target*/) { return std::numeric_limits<int64_t>::max(); }
  // Returns the model that does the work: itself, or the model to which it forwards every call.
  virtual CausalModel& innermost() { return *this; }
  // Returns the object that runs a step's drafting and verification (a round) on this target's device, or null if there
  // is none.
  virtual RoundRunner* rounds() { return nullptr; }
};

// A target and its draft.
struct ModelPair {
  CausalModel& target;
  CausalModel& draft;
};

// Forwards every call to another model. A derived class that times or counts passes overrides only extend().
class ForwardingModel : public CausalModel {
 public:
  explicit ForwardingModel(CausalModel& model) : model_(model) {}  // `model` must outlive this object
  int64_t vocab_size() const override { return model_.vocab_size(); }
  int64_t max_length() const override { return model_.max_length(); }
  int64_t capacity_tokens() const override { return model_.capacity_tokens(); }
  SequenceId open() override { return model_.open(); }
  SequenceId fork(SequenceId sequence, int64_t length) override { return model_.fork(sequence, length); }
  void close(SequenceId sequence) override { model_.close(sequence); }
  int64_t length(SequenceId sequence) const override { return model_.length(sequence); }
  void truncate(SequenceId sequence, int64_t length) override { model_.truncate(sequence, length); }
  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) override {
    model_.keep(sequence, length, places);
  }
  void extend(std::span<const Extension> extensions, LogitRows& out) override { model_.extend(extensions, out); }
  int64_t adopt(SequenceId sequence, std::span<const int32_t> tokens, uint64_t tenant) override {
    return model_.adopt(sequence, tokens, tenant);
  }
  int64_t cached_prefix_tokens(std::span<const int32_t> tokens, uint64_t tenant) const override {
    return model_.cached_prefix_tokens(tokens, tenant);
  }
  CacheCounts cache_counts() const override { return model_.cache_counts(); }
  bool reads_states() const override { return model_.reads_states(); }
  int64_t follow(SequenceId sequence, SequenceId target) override { return model_.follow(sequence, target); }
  CausalModel& innermost() override { return model_.innermost(); }
  RoundRunner* rounds() override { return model_.rounds(); }

 private:
  CausalModel& model_;
};

}  // namespace specdec::decode
