// Arguments and results of the kernels that sample, draft and verify tokens (CudaLibrary in kernels/cuda.h). All
// pointers are to device memory.
//
// The nodes of a round are all its drafted tokens, ordered by sequence, and by level within a sequence. Nodes are
// numbered before drafting. A node that is not drafted after all has the token kAbsentNode.
#pragma once

#include <cstdint>

#include "engine/rules/draft_rules.h"

namespace specdec::kernels {

// The sampling options of one row of logits, from which its distribution is made (decode/sampling/sampler.h).
struct SampleRow {
  double temperature, top_p, min_p;  // temperature 0: greedy
  int32_t top_k;                     // 0: no limit
  int32_t left_alone;                // 1: the row is not changed
};
struct SamplePass {
  const SampleRow* rows;
  float* logits;    // [num_rows, vocab], replaced by probabilities unless the row is greedy
  int32_t* tokens;  // [num_rows], the likeliest token, or kBrokenRow if the row holds NaN or +inf, or only -inf
  // [num_rows] or null: how many different tokens a draft may draw from the row. Only tokens with a probability of at
  // least rules::kLeastDrawn count.
  int32_t* choices;
  int32_t num_rows, vocab;
};
// Special values of a token: kBrokenRow for a row that cannot be sampled, kAbsentNode for a node that is not drafted.
inline constexpr int32_t kBrokenRow = -1, kAbsentNode = -2;

// Verification rules (engine/rules). kGreedy accepts the target's likeliest tokens, in chains and in trees.
enum class DeviceRule : int32_t { kTokenChain, kBlockChain, kTokenTree, kBlockTree, kTarget, kCoupled, kGreedy };
inline constexpr int32_t kMaxVerifyNodes = 64;
// Maximum threads per block. kMaxVerifyThreads is for verification, which needs many registers; kMaxSweepThreads is for
// kernels that process a row of logits.
inline constexpr unsigned kMaxVerifyThreads = 512, kMaxSweepThreads = 1024;
struct VerifyNode {
  int32_t token;   // kAbsentNode: the node, its later siblings and all their descendants are absent
  int32_t parent;  // the parent node's index within the sequence, or -1 for the text; in a chain the previous node
  // The row of VerifyPass::q that the token was drawn from; negative means none, which only kTarget and kGreedy allow.
  int32_t q_row;
  int32_t p_row;  // the row of VerifyPass::p used for the node's score; negative means that it has no score
};
// The verification of one sequence. Its nodes are [first, first + count) of VerifyPass::nodes, at most kMaxVerifyNodes.
// Its count + 1 rows of VerifyPass::p begin at p_row.
struct VerifyTask {
  DeviceRule rule;
  int32_t first, count, p_row;
  int64_t position;     // position of the next token in the text
  uint64_t seed;        // seed of the request
  uint64_t cursors[4];  // numbers drawn so far for each purpose
};
struct VerifyOutcome {
  int32_t accepted, next, node;
  int32_t failed;  // 1 if a drafted token had probability 0 in q, or there was no distribution to draw from
  uint64_t cursors[4];
};
// How well the draft matches the target at a node: overlap = Σ min(p, q), and ratio = min(1, p / q) of the node's
// token. Only valid if the text before the node was accepted.
struct VerifyScore {
  double overlap, ratio;
};
struct VerifyPass {
  const VerifyTask* tasks;
  const VerifyNode* nodes;
  float *p, *q;              // rows [vocab]; verification overwrites them
  float* left;               // [num_tasks, vocab], workspace for residual distributions
  const int32_t* likeliest;  // the likeliest token of each row of p, which kGreedy reads; null if no task is greedy
  VerifyOutcome* outcomes;
  VerifyScore* scores;  // one per drafted node with a p_row; null: no scores are computed
  int32_t num_tasks, num_nodes, vocab;
};

// One row of a draft's logits. The children of a node (or of the text) are drawn from it without replacement. The rows
// of one sequence are consecutive in the pass, in the order of its nodes. Nodes are numbered as in the round.
struct DraftRow {
  SampleRow options;
  uint64_t seed, cursor;       // the request's seed; numbers that its draft had drawn before the round
  int32_t likeliest;           // 1: the draft takes its likeliest tokens, as greedy rows always do
  int32_t first_child, width;  // the children are the nodes [first_child, first_child + width)
  int32_t parent;              // the node whose children are drawn from this row, or -1 for the text
  int32_t root;                // the sequence's first node
  int32_t level_begin;         // the first node that this pass draws for the sequence
  int32_t rows_before;         // number of earlier rows of the same sequence in this pass
  // If not null, where the children's tokens are also written, one after the other: among the token ids of the target's
  // pass and of the draft's next pass.
  int32_t *target_ids, *next_ids;
  int32_t* going;  // nonzero while the sequence continues to draft
  // Counts the sequences that take part in the draft's next pass: the first row of each such sequence adds 1. Null if
  // this is the sequence's last pass.
  int32_t* next;
  // For chains that may stop early (rules/draft_rules.h). *drafting is the number of sequences in this pass.
  rules::StopLimits stop;
  const rules::AcceptanceTable* acceptance;  // null: the chain never stops early
  const int32_t* drafting;
};
struct DraftPass {
  const DraftRow* rows;
  float* logits;  // [num_rows, vocab], replaced by probabilities; in greedy rows of trees, drafted tokens become -inf
  // The results of a SamplePass over the same rows; `logits` then holds probabilities in non-greedy rows. If null, this
  // pass computes the distributions itself, and only greedy rows may have more than one child.
  const int32_t *sampled, *choices;
  VerifyNode* nodes;   // the nodes of the round; this pass writes their tokens
  int32_t* tokens;     // one per node of `nodes`; kBrokenRow as in SamplePass
  float* confidences;  // for each child in a chain, its probability (at temperature 1 if greedy)
  int32_t num_rows, vocab;
};

}  // namespace specdec::kernels
