// What the kernels read and write that sample, draw and verify tokens (CudaLibrary in kernels/cuda.h). All pointers are
// to device memory.
//
// The nodes of a round are all its drafted tokens, those of each sequence one after the other, level by level. They are
// laid out before they are drafted, and some are never drafted: their token is kAbsentNode.
#pragma once

#include <cstdint>

#include "engine/rules/draft_rules.h"

namespace specdec::kernels {

// One row of logits that becomes a distribution under a request's options (decode/sampler.h).
struct SampleRow {
  double temperature, top_p, min_p;  // temperature 0: greedy
  int32_t top_k;                     // 0: none
  int32_t left_alone;                // 1: nothing is done with the row
};
struct SamplePass {
  const SampleRow* rows;
  float* logits;    // [num_rows, vocab], replaced by probabilities unless the row is greedy
  int32_t* tokens;  // [num_rows] the likeliest; kBrokenRow: the logits hold NaN or infinity, or none is finite
  // [num_rows] or null: how many different tokens a draft may draw from the row, those of
  // rules::kLeastDrawn or more.
  int32_t* choices;
  int32_t num_rows, vocab;
};
// Stand for tokens: of a row that cannot be sampled, and of a node that is not drafted.
inline constexpr int32_t kBrokenRow = -1, kAbsentNode = -2;

// Verification (rules in engine/rules). kGreedy keeps tokens that are the target's likeliest, of chains and trees.
enum class DeviceRule : int32_t { kTokenChain, kBlockChain, kTokenTree, kBlockTree, kTarget, kCoupled, kGreedy };
inline constexpr int32_t kMaxVerifyNodes = 64;
// Threads of a block: a task of rules, which need many registers, and a sweep over a row.
inline constexpr unsigned kMaxVerifyThreads = 512, kMaxSweepThreads = 1024;
struct VerifyNode {
  int32_t token;   // kAbsentNode: the node is absent, and so are later children of its parent and all that follows it
  int32_t parent;  // the node of its sequence that it follows, or -1 for the text; in a chain the one before it
  // The row of VerifyPass::q that it was drawn from; below 0: none, which only kTarget and kGreedy allow.
  int32_t q_row;
  int32_t p_row;  // the row of VerifyPass::p with which its score is computed; below 0: it has none
};
// One sequence: its nodes are [first, first + count) of VerifyPass::nodes, at most kMaxVerifyNodes, and its rows of
// VerifyPass::p begin at p_row, count + 1 of them.
struct VerifyTask {
  DeviceRule rule;
  int32_t first, count, p_row;
  int64_t position;     // of the next token in the text
  uint64_t seed;        // of the request
  uint64_t cursors[4];  // numbers drawn so far for each purpose
};
struct VerifyOutcome {
  int32_t accepted, next, node;
  int32_t failed;  // 1 if a drafted token had no mass in q, or there was nothing to draw from
  uint64_t cursors[4];
};
// What the first child of a node tells of the draft, if the text reached it: Σ min(p, q) and min(1, p / q) of its
// token.
struct VerifyScore {
  double overlap, ratio;
};
struct VerifyPass {
  const VerifyTask* tasks;
  const VerifyNode* nodes;
  float *p, *q;              // rows [vocab]; the rules change them
  float* left;               // [num_tasks, vocab], room for residuals
  const int32_t* likeliest;  // by row of p, which kGreedy reads instead of p; null if no task is greedy
  VerifyOutcome* outcomes;
  VerifyScore* scores;  // one for each drafted node with a p_row; null: no scores are computed
  int32_t num_tasks, num_nodes, vocab;
};

// One row of a draft's logits, from which the children of a node (or of the text) are drawn without replacement. The
// rows of one sequence follow each other in the pass, in the order of its nodes. Nodes are numbered as in the round.
struct DraftRow {
  SampleRow options;
  uint64_t seed, cursor;       // of the request; `cursor`: numbers that its draft had drawn before the round
  int32_t likeliest;           // 1: the draft takes its likeliest tokens. Greedy rows always do.
  int32_t first_child, width;  // the children are the nodes [first_child, first_child + width)
  int32_t parent;              // the node that they follow, or -1 for the text
  int32_t root;                // the sequence's first node
  int32_t level_begin;         // the first node that this pass draws for the sequence
  int32_t rows_before;         // how many of the sequence's rows in this pass come before this one
  // Where the children's tokens are also written, one after the other: ids of the target's pass and of the draft's
  // next one. Null: nowhere.
  int32_t *target_ids, *next_ids;
  int32_t* going;  // of the sequence: whether it still drafts
  // How many sequences have a part in the next pass of the draft: each adds itself with its first row. Null: this is
  // its last pass.
  int32_t* next;
  // Of chains that may stop early (rules/draft_rules.h). `drafting` sequences have a part in this pass.
  rules::StopLimits stop;
  const rules::AcceptanceTable* acceptance;  // null: it never stops
  const int32_t* drafting;
};
struct DraftPass {
  const DraftRow* rows;
  float* logits;  // [num_rows, vocab], replaced by probabilities; greedy rows lose the children of trees instead
  // What a SamplePass gave over the same rows but for greedy ones: then their `logits` are its probabilities. Null: the
  // pass makes the distributions itself, and only greedy rows have more than one child.
  const int32_t *sampled, *choices;
  VerifyNode* nodes;   // of the round; their tokens are written
  int32_t* tokens;     // by node, as in `nodes`; kBrokenRow as in SamplePass
  float* confidences;  // by node: the probability of a child of a chain; if it is greedy, that at temperature 1
  int32_t num_rows, vocab;
};

}  // namespace specdec::kernels
