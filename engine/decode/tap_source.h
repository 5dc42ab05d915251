// The seam between the runner of a target and the runners of drafts that read its hidden states.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/decode/causal_model.h"
#include "engine/model/forward.h"

namespace specdec::decode {

// Hidden states of the positions [first, end) of a sequence, [end - first, A·E]; undefined if there are none.
struct KeptStates {
  int64_t first = 0, end = 0;
  at::Tensor rows;
};

// A target whose passes keep the hidden states of the sequences that a draft follows.
class TapSource {
 public:
  virtual ~TapSource() = default;
  // Adds a draft that reads the states after these layers, and returns its number.
  virtual int64_t add_reader(std::vector<int64_t> layers) = 0;
  // From now on keeps the states of the sequence's new positions for this draft. Does nothing if it does so already.
  virtual void keep_states(int64_t reader, SequenceId sequence) = 0;
  virtual void drop_states(int64_t reader, SequenceId sequence) = 0;
  virtual KeptStates kept(int64_t reader, SequenceId sequence) const = 0;
  virtual void forget(int64_t reader, SequenceId sequence, int64_t before) = 0;  // drops the positions before `before`
};

// The states that a target keeps for its readers, beside its caches.
class TapStore {
 public:
  int64_t add_reader(std::vector<int64_t> layers);
  void start(int64_t reader, SequenceId sequence, int64_t length);
  void drop(int64_t reader, SequenceId sequence);
  KeptStates kept(int64_t reader, SequenceId sequence) const;
  void forget(int64_t reader, SequenceId sequence, int64_t before);

  // Returns an observer for a pass over these extensions; empty if nobody follows their sequences. keep_pass() takes
  // what it saw; `lengths` are those of the sequences before the pass.
  model::HiddenObserver observe(std::span<const Extension> extensions);
  void keep_pass(std::span<const Extension> extensions, std::span<const int64_t> lengths);
  // Follow what happens to the caches.
  void truncate(SequenceId sequence, int64_t length);
  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places);
  void fork(SequenceId from, SequenceId to, int64_t length);
  void close(SequenceId sequence);

 private:
  struct Reader {
    std::vector<int64_t> layers;
    std::map<SequenceId, KeptStates> kept;
  };
  std::vector<Reader> readers_;
  std::map<int64_t, at::Tensor> seen_;  // by layer, of the pass
};

}  // namespace specdec::decode
