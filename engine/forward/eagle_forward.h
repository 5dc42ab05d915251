// The forward pass of an EAGLE-3 head, as free functions over tensors for training and decoding. Row t of a pass
// combines the hidden state of position t with the embedding of token t + 1, and gives the distribution of token t + 2.
// In shapes: E is the hidden size of the head, Et of the target; A taps (EagleConfig); S sequences; H query heads, G kv
// heads, D their dimension; V vocabulary of the draft.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <span>
#include <vector>

#include "engine/forward/forward.h"
#include "engine/forward/memory_plan.h"
#include "engine/weights/eagle_head.h"

namespace specdec::model {

// Collects the hidden states (taps) that a head reads from a pass of the target.
class TapReader {
 public:
  explicit TapReader(const EagleConfig& config) : taps_(config.taps), found_(config.taps.size()) {}
  HiddenObserver observer();  // for one pass; must not outlive the reader
  at::Tensor rows() const;    // [..., A·Et], the taps of the last pass in ascending order

 private:
  std::vector<int64_t> taps_;
  std::vector<at::Tensor> found_;
};

// Returns the memory that a head needs. The head shares the target's embedding if both have the same hidden size.
HeadMemory head_memory(const EagleConfig& head);

// Returns the input states [..., E] of a head's first pass over rows. They are computed from the target's hidden states
// `taps` [..., A·Et] (TapReader::rows()). Later passes read EagleOutput::fed_back instead.
at::Tensor fuse_taps(const EagleHead& head, const at::Tensor& taps);

struct EagleInput {
  at::Tensor tokens;     // [...] int64: for each row, the token after the position of its hidden state
  at::Tensor hidden;     // [..., E]: from fuse_taps(), or fed_back of an earlier pass
  at::Tensor positions;  // [...] int64: positions of the hidden states
  int64_t rope_rescale = 0;
};
struct EagleOutput {
  at::Tensor fed_back;  // [..., E]: the hidden states to read in a pass over the next position
  at::Tensor normed;    // [..., E]: the input of lm_head
};
// attend(q [..., S, H, D], k, v [..., S, G, D]) returns [..., S, H, D].
using EagleAttention = std::function<at::Tensor(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v)>;
EagleOutput eagle_forward(const EagleHead& head, const EagleInput& input, const EagleAttention& attend);

// Returns the logits [..., V] of rows of EagleOutput::normed.
at::Tensor eagle_logits(const EagleHead& head, const at::Tensor& normed);

// Runs a pass over new tokens of several sequences at once, as forward() of a decoder does. A part's tokens are those
// of EagleInput::tokens. `hidden` [T, E] holds the hidden states of all parts' rows, in order. Appends the rows to the
// caches and commits them; a row's slot is its position unless the part sets positions. Never computes gradients. The
// rope must not depend on the length of the text (rope_varies()).
EagleOutput eagle_pass(const EagleHead& head, std::span<const SequencePart> parts, const at::Tensor& hidden);

}  // namespace specdec::model
