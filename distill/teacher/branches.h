// On-policy roll-outs. In serving, the draft's second token follows the draft's own first token, not the text's. A
// draft trained only on text therefore meets contexts in serving that it has never seen. Here the draft continues the
// text with its own tokens, as in drafting, from random positions (anchors). These tokens enter the loss too, and the
// target scores all of them in one pass, as in verification.
//
// A branch is the sequence of tokens that the draft generates after an anchor. Depth j is the j-th drafted position:
// its context is the text up to the anchor and the first j - 1 tokens of the branch. With a_j the acceptance at depth
// j, the expected number of accepted tokens is the sum over m of a_1 · … · a_m. Its derivative by a_j is
//   w_j = Σ_{m >= j} Π_{i <= m, i != j} a_i.
// The weight of depth j in the loss is w_j, normalised to a sum of 1. (D-PACE weights positions in the same way; here
// the a_j are the measured acceptances of an autoregressive draft.)
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "base/schema/shard_index.h"
#include "distill/rows/batcher.h"
#include "engine/forward/forward.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

struct OnPolicyOptions {
  int64_t length = 0;    // K, draft positions per roll-out, the first one included; 0 or 1 = no roll-outs
  double share = 0.125;  // roll-outs per position in the loss
  uint64_t seed = 0;

  bool applies() const { return length > 1; }
};

// Returns the weight in the loss of each draft position (depth); the weights add up to 1. `acceptance` has the mean
// acceptance at each position.
std::vector<double> depth_weights(const std::vector<double>& acceptance);

// Returns the number of anchors (starts of roll-outs) in a row: options.share of the possible anchors, rounded up. A
// position is a possible anchor if it is in the loss and K tokens (options.length) fit between it and `max_position`.
int64_t anchor_count(const TokenRow& row, const OnPolicyOptions& options, int64_t max_position);

// The branches (tokens that the draft generated) of a batch. A is the largest number of anchors (starts of branches) of
// a row. Flat index (j - 2) · A + a is the token that was drafted at depth j - 1 after anchor a and is the input at
// depth j. A row with fewer than A anchors repeats one of its anchors, and the tokens of repeated anchors do not count.
struct Branches {
  at::Tensor tokens, positions;  // [B, N] int64, N = (K - 1) · A
  at::Tensor allowed;            // [B, N, S + N] bool: attention mask for TrainPass::extend()
  // rows[j - 2]: the rows at draft position j that are in the loss, as int64 flat indices into [B · N]. Tokens after
  // EOS are not in the loss.
  std::vector<at::Tensor> rows;
};

// Branches (tokens that the draft generated) with the tensors that their backward pass needs. hidden[j - 2] has the
// draft's hidden states at branches.rows[j - 2]. embedded[i] [B, A, E] has the input embeddings of the branches, as
// leaves of autograd; tokens[i] has the token ids of embedded[i].
struct DraftedBranches {
  Branches branches;
  std::vector<at::Tensor> hidden, tokens, embedded;
};

// The texts that the draft continues: the rows of `batch`, whose row_index refers to `rows`. `step` seeds the random
// numbers. temperatures [B] fp32 has the temperature at which the draft samples tokens after each text.
struct BranchSource {
  const std::vector<TokenRow>& rows;
  const Batch& batch;
  int64_t step = 0;
  at::Tensor temperatures;
};
// Generates branches after the texts of `pass`, the draft's forward pass over the batch. Computes no gradients. Anchors
// and tokens depend on (seed, step, row) and on the draft's distributions, but not on the other rows.
DraftedBranches draft_branches(const OnPolicyOptions& options, const BranchSource& source, const model::Decoder& draft,
                               model::TrainPass& pass);

// Returns a model's hidden states at batch.rows, followed by those at the rows of the branches (the draft's roll-outs),
// ordered by draft position: [R + Σ R_j, E].
at::Tensor branched_hidden(const model::Decoder& decoder, const Batch& batch, const Branches& branches);

}  // namespace specdec::distill
