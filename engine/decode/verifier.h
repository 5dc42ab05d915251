// Verification rules: given drafted tokens and both distributions, how many are kept and what follows. Pure functions
// over host rows; all randomness through Randomness. Each leaves exactly the target's distribution (tests/lossless
// enumerates every outcome).
//
//             chain                                              tree
//   token     Leviathan et al. 2023, arXiv 2211.17192            recursive rejection, Miao et al. 2024 (SpecInfer),
//   arXiv 2305.09781 block     Sun et al. 2024, arXiv 2403.10444                  traversal, Weng et al. 2025, arXiv
//   2505.12398 target    the target draws; what it drew is kept if it was drafted: the draft may choose its tokens as
//   it likes coupled   the same with noise by position that the draft shared (Daliri et al. 2024, arXiv 2408.07978):
//   the text is that of plain
//             decoding under the same seed for every draft and shape
//
// A token of a chain is accepted with 1 − TV under token and block (block keeps more on average), with p(x) under
// target, with at least (1 − TV) / (1 + TV) under coupled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/randomness.h"

namespace specdec::decode {

// N drafted tokens. A chain has no parents: each token follows the one before it. In a tree parents[i] < i is the node
// before node i, −1 the text itself; siblings are distinct, in the order in which they were drawn, and each level comes
// behind the one above.
struct VerifyInput {
  std::span<const int32_t> drafted;       // N tokens
  std::vector<std::span<const float>> p;  // N + 1 target rows [V]: p[0] after the text, p[i + 1] after node i
  // N draft rows [V]: what node i was drawn from, its earlier siblings taken out (siblings share a row)
  std::vector<std::span<const float>> q;
  int64_t position = 0;  // in the text of what comes next; coupled: drawn from draw_at(position + depth)
  std::span<const int32_t> parents = {};
};
struct VerifyResult {
  int64_t accepted = 0;  // tokens kept
  int32_t next = -1;     // the correction, or the bonus token when nothing more was drafted
  int32_t node = -1;     // of a tree: the last one kept, −1: none
};

// Of chains.
VerifyResult verify_token(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);
VerifyResult verify_block(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);
// Of both (tree_verifier.cpp).
VerifyResult verify_recursive(const VerifyInput& input, Randomness& randomness);
VerifyResult verify_traversal(const VerifyInput& input, Randomness& randomness);
VerifyResult verify_target(const VerifyInput& input, Randomness& randomness);
VerifyResult verify_coupled(const VerifyInput& input, Randomness& randomness);

VerifyResult verify(VerifyRule rule, const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);

// The first child of a node (−1: of the text) at or behind `from`; −1: none. Linear in N.
int32_t next_child(const VerifyInput& input, int32_t node, int32_t from = 0);

}  // namespace specdec::decode
