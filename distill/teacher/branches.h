// On-policy roll-outs. When a draft serves, its second token follows its own first token and not the text's, so a draft
// that has only seen text meets contexts that it was never trained on. Here the draft continues the text at random
// positions (anchors) with its own tokens, as it does when it drafts, and learns at these tokens, too; the target
// scores all of them in one pass, as it does when it verifies.
//
// A branch is what the draft writes after an anchor. Depth j is the j-th drafted position: depth 1 reads the text
// alone, and depth j reads the text and the j - 1 tokens of the branch before it. The expected number of accepted
// tokens is the sum over m of a_1 · … · a_m, with a_j the acceptance at depth j, and its derivative by a_j is
//   w_j = Σ_{m >= j} Π_{i <= m, i != j} a_i.
// These are the weights of the depths in the loss, normalised to a sum of 1 (research: the same idea as D-PACE's, with
// measured acceptances of an autoregressive draft).
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
  int64_t length = 0;    // K, the drafted positions of a branch, depth 1 included; 0 or 1 = no branches
  double share = 0.125;  // anchors per learnt position
  uint64_t seed = 0;

  bool applies() const { return length > 1; }
};

// Returns the weights of the depths 1 .. acceptance.size(), which add up to 1.
std::vector<double> depth_weights(const std::vector<double>& acceptance);

// Returns the number of anchors of a row. Possible anchors are the learnt positions that leave room for K tokens before
// `max_position`; the share is of these, rounded up.
int64_t anchor_count(const TokenRow& row, const OnPolicyOptions& options, int64_t max_position);

// The branches of a batch. Flat index (j - 2) · A + a is the token at depth j - 1 after anchor a; it is read at depth
// j. Rows with fewer than A anchors repeat one, and its tokens do not count.
struct Branches {
  at::Tensor tokens, positions;  // [B, N] int64, N = (K - 1) · A
  at::Tensor allowed;            // [B, N, S + N] bool, as TrainPass::extend() takes it
  // rows[j - 2]: the flat rows of [B · N] that count at depth j, int64. Tokens after EOS do not count.
  std::vector<at::Tensor> rows;
};

// What the draft wrote and read. hidden[j - 2] are its hidden states at branches.rows[j - 2]. The rows of the embedding
// table that the branches read, embedded[i] [B, A, E], are leaves of autograd, and tokens[i] are their ids.
struct DraftedBranches {
  Branches branches;
  std::vector<at::Tensor> hidden, tokens, embedded;
};

// What the draft continues: the texts of a batch, whose row indices refer to `rows`. The random numbers depend on
// `step`. temperatures [B] fp32 are the temperatures at which the draft draws tokens after each text.
struct BranchSource {
  const std::vector<TokenRow>& rows;
  const Batch& batch;
  int64_t step = 0;
  at::Tensor temperatures;
};
// Lets the draft continue the texts of `pass`, which it has run over the batch, and learns nothing yet. The places and
// the tokens depend on (seed, step, row) and on the draft's distributions, but not on the other rows.
DraftedBranches draft_branches(const OnPolicyOptions& options, const BranchSource& source, const model::Decoder& draft,
                               model::TrainPass& pass);

// Returns a model's hidden states at batch.rows and then at the branches' rows, depth by depth: [R + Σ R_j, E].
at::Tensor branched_hidden(const model::Decoder& decoder, const Batch& batch, const Branches& branches);

}  // namespace specdec::distill
