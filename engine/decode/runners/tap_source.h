// The seam between the runner of a target and the runners of drafts that read its hidden states.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "engine/decode/runners/causal_model.h"
#include "engine/forward/forward.h"

namespace specdec::decode {

// Hidden states of the positions [first, end) of a sequence, [end - first, A·E]; undefined if there are none.
struct KeptStates {
  int64_t first = 0, end = 0;
  at::Tensor rows;
};

// A draft's claim on its target's states: the layers that it reads, and what is kept of the sequences that it follows.
// It ends with the last holder of the pointer that add_reader() returned.
struct TapReader {
  std::vector<int64_t> layers;
  std::map<SequenceId, KeptStates> kept;
};

// A target whose passes keep the hidden states of the sequences that a draft follows. Only add_reader() may be called,
// and a reader be released, by another thread than the one that runs the passes.
class TapSource {
 public:
  virtual ~TapSource() = default;
  // Adds a draft that reads the states after these layers.
  virtual std::shared_ptr<TapReader> add_reader(std::vector<int64_t> layers) = 0;
  // From now on keeps the states of the sequence's new positions for this draft. Does nothing if it does so already.
  virtual void keep_states(TapReader& reader, SequenceId sequence) = 0;
};

// Returns what is kept of a sequence.
KeptStates kept_states(const TapReader& reader, SequenceId sequence);
// Drops the positions before `before`.
void forget_states(TapReader& reader, SequenceId sequence, int64_t before);

// What drafts read of the hidden states of a pass.
struct Observation {
  model::HiddenObserver observer;  // empty: nothing
  std::vector<int64_t> layers;     // that it looks at, ascending
};

// The states that a target keeps for its readers, beside its caches.
class TapStore {
 public:
  std::shared_ptr<TapReader> add_reader(std::vector<int64_t> layers);

  // Returns what is read of a pass over these extensions; nothing if nobody follows their sequences. keep_pass() takes
  // what the observer saw; `lengths` are those of the sequences before the pass.
  Observation observe(std::span<const Extension> extensions);
  void keep_pass(std::span<const Extension> extensions, std::span<const int64_t> lengths);
  // Follow what happens to the caches.
  void truncate(SequenceId sequence, int64_t length);
  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places);
  void fork(SequenceId from, SequenceId to, int64_t length);
  void close(SequenceId sequence);

 private:
  // Calls f(reader) for the readers that still exist.
  template <class F>
  void for_each_reader(const F& f);

  std::mutex mutex_;  // guards the list
  std::vector<std::weak_ptr<TapReader>> readers_;
  std::map<int64_t, at::Tensor> seen_;  // by layer, of the pass
};

}  // namespace specdec::decode
