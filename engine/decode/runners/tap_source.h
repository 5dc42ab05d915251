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
// The claim ends when nobody holds the pointer that add_reader() returned any more.
struct TapReader {
  std::vector<int64_t> layers;
  std::map<SequenceId, KeptStates> kept;
};

// A target whose passes keep the hidden states of the sequences that a draft follows. Other threads than the one that
// runs the passes may call add_reader() and release a reader, but nothing else.
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
  std::vector<int64_t> layers;     // layers that the observer looks at, ascending
};

// The states that a target keeps for its readers, beside its caches.
class TapStore {
 public:
  std::shared_ptr<TapReader> add_reader(std::vector<int64_t> layers);

  // observe() returns what drafts read of a pass over these extensions; it is empty if no draft follows their
  // sequences. After the pass, keep_pass() keeps what the observer saw; `lengths` are the sequences' lengths before the
  // pass.
  Observation observe(std::span<const Extension> extensions);
  void keep_pass(std::span<const Extension> extensions, std::span<const int64_t> lengths);
  // The target calls these when it does the same to its caches.
  void truncate(SequenceId sequence, int64_t length);
  void keep(SequenceId sequence, int64_t length, std::span<const int64_t> places);
  void fork(SequenceId from, SequenceId to, int64_t length);
  void close(SequenceId sequence);

 private:
  // Calls f(reader) for the readers that still exist.
  template <class F>
  void for_each_reader(const F& f);

  std::mutex mutex_;  // guards readers_
  std::vector<std::weak_ptr<TapReader>> readers_;
  std::map<int64_t, at::Tensor> seen_;  // by layer, of the pass
};

}  // namespace specdec::decode
