// The seam between verification and whatever computes logits: a real decoder (model_runner.h) or a table in tests.
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
  std::span<const int32_t> tokens;        // appended to the sequence, at least one
  int64_t num_logits = 1;                 // rows wanted, for the last tokens; 0 = only fill the cache
  std::span<const int32_t> parents = {};  // of a tree: the index in `tokens` of the token before each, less than its
                                          // own; -1: what the cache held ends there. Empty: each follows the one before
};

// fp32 logits on the host, row-major [rows, vocab]. Owned by the step and reused: no allocation once warm.
struct LogitRows {
  std::vector<float> data;
  int64_t vocab = 0;
  std::span<const float> row(int64_t i) const { return {data.data() + i * vocab, static_cast<size_t>(vocab)}; }
  std::span<float> row(int64_t i) { return {data.data() + i * vocab, static_cast<size_t>(vocab)}; }
};

// Thrown by extend() and fork() before anything was written: the caches of this model are full. Sequences that close
// make room.
class CacheFull : public Error {
 public:
  explicit CacheFull(const std::string& what) : Error(ErrorKind::kDevice, what) {}
};

// What the caches of a model take, and how much of its prompts was found in them.
struct CacheCounts {
  int64_t budget_bytes = 0;                    // 0: none
  int64_t held_bytes = 0;                      // by open sequences
  int64_t kept_bytes = 0;                      // of prompts read before, until the memory is needed
  int64_t asked_tokens = 0, found_tokens = 0;  // of adopt(), so far
};

class CausalModel {
 public:
  virtual ~CausalModel() = default;
  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_length() const = 0;
  virtual int64_t capacity_tokens() const {
    return std::numeric_limits<int64_t>::max();
  }  // tokens that all its caches hold together
  virtual SequenceId open() = 0;
  // A new sequence whose cache holds the first `length` tokens of another, at most as many as that has.
  virtual SequenceId fork(SequenceId sequence, int64_t length) = 0;
  virtual void close(SequenceId sequence) = 0;
  virtual int64_t length(SequenceId sequence) const = 0;
  virtual void truncate(SequenceId sequence, int64_t length) = 0;
  // What stays of a tree: the first `length` tokens of the cache and, in this order, those at `places` >= length, which
  // rise.
  virtual void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) = 0;
  // One pass over all extensions; out gets Σ num_logits rows in order.
  virtual void extend(std::span<const Extension> extensions, LogitRows& out) = 0;
  // An empty sequence takes over what other sequences of this tenant, open or closed, left of these tokens, and is left
  // to later ones in turn. Returns how many it now holds.
  virtual int64_t adopt(SequenceId, std::span<const int32_t>, uint64_t /*tenant*/) { return 0; }
  // How many it would hold, as far as that is known without looking at open sequences; nothing changes.
  virtual int64_t adoptable(std::span<const int32_t>, uint64_t /*tenant*/) const { return 0; }
  virtual CacheCounts cache_counts() const { return {}; }
};

// A target and the draft that speculates for it.
struct ModelPair {
  CausalModel& target;
  CausalModel& draft;
};

// Passes everything on to another model: what times or counts passes overrides extend() alone.
class ForwardingModel : public CausalModel {
 public:
  explicit ForwardingModel(CausalModel& model) : model_(model) {}  // which must live longer
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
  int64_t adoptable(std::span<const int32_t> tokens, uint64_t tenant) const override {
    return model_.adoptable(tokens, tenant);
  }
  CacheCounts cache_counts() const override { return model_.cache_counts(); }

 private:
  CausalModel& model_;
};

}  // namespace specdec::decode
