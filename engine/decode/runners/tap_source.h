// The interface between the runner of a target and the runners of drafts that read its hidden states (taps).
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

// Hidden states of the positions [first, end) of a sequence, [end - first, A·E]; `rows` is undefined if there are none.
struct KeptStates {
  int64_t first = 0, end = 0;
  at::Tensor rows;
};

// A draft's registration at its target: the layers that it reads, and the states stored for the sequences that it
// follows. The registration ends when the caller of add_reader() releases the returned pointer.
struct TapReader {
  std::vector<int64_t> layers;
  std::map<SequenceId, KeptStates> kept;
};

// A target whose passes store the hidden states of the sequences that drafts follow. One thread runs the passes. Other
// threads may only call add_reader() and release a reader.
class TapSource {
 public:
  virtual ~TapSource() = default;
  // Registers a draft that reads the states after these layers.
  virtual std::shared_ptr<TapReader> add_reader(std::vector<int64_t> layers) = 0;
  // From now on, stores the states of the sequence's new positions for this draft. Does nothing if they are stored
  // already.
  virtual void keep_states(TapReader& reader, SequenceId sequence) = 0;
};

// Returns the states stored for a sequence.
KeptStates kept_states(const TapReader& reader, SequenceId sequence);
// Drops the states of the positions before `before`.
void forget_states(TapReader& reader, SequenceId sequence, int64_t before);

// The observer that a pass needs to store hidden states for drafts.
struct Observation {
  model::HiddenObserver observer;  // empty: no states are needed
  std::vector<int64_t> layers;     // observed layers, ascending
};

// The hidden states that a target stores for its drafts.
class TapStore {
 public:
  std::shared_ptr<TapReader> add_reader(std::vector<int64_t> layers);

  // observe() returns the observer for a pass over these extensions; it is empty if no draft follows their sequences.
  // Call keep_pass() after the pass: it stores the states that the observer received. `lengths` are the sequences'
  // lengths before the pass.
  Observation observe(std::span<const Extension> extensions);
  void keep_pass(std::span<const Extension> extensions, std::span<const int64_t> lengths);
  // The target calls these functions to change the stored states in the same way as its caches.
  void truncate(SequenceId sequence, int64_t length);
  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places);
  void fork(SequenceId from, SequenceId to, int64_t length);
  void close(SequenceId sequence);

 private:
  // Calls f(reader) for each draft that add_reader() has registered and that still exists.
  template <class F>
  void for_each_reader(const F& f);

  std::mutex mutex_;  // protects readers_
  std::vector<std::weak_ptr<TapReader>> readers_;
  std::map<int64_t, at::Tensor> seen_;  // hidden states by layer, from the current pass
};

}  // namespace specdec::decode
