// Verification rules: given drafted tokens and the distributions p and q, they decide how many tokens are accepted and
// which token follows. They are pure functions over host rows; all randomness comes from a Randomness. Their source is
// in engine/rules, which the CUDA kernels share. Each rule preserves exactly the target's distribution. tests/lossless
// enumerates every outcome of each rule; a new rule must be added to its lists. Greedy text is verified by
// HostRound::verify_greedy(), and in rounds on a device by DeviceRule::kGreedy.
//
// * token: chains as in Leviathan et al. 2023, arXiv 2211.17192; trees by recursive rejection as in Miao et al. 2024
//   (SpecInfer), arXiv 2305.09781.
// * block: chains as in Sun et al. 2024, arXiv 2403.10444; trees by traversal as in Weng et al. 2025, arXiv 2505.12398.
// * target: a token is drawn from the target and accepted if it was drafted, so any draft is allowed.
// * coupled: like target, but target and draft draw with the same noise at each position (Daliri et al. 2024, arXiv
//   2408.07978). The text equals that of plain decoding under the same seed, for every draft and shape.
//
// The probability that a token x of a chain is accepted depends on TV, the total variation distance of p and q. It is 1
// − TV under token and block (block accepts more tokens on average), p(x) under target, and at least (1 − TV) / (1 +
// TV) under coupled.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/sampling/randomness.h"
#include "engine/rules/team.h"

namespace specdec::decode {

// N drafted tokens and their distributions. In a chain each token follows the previous one. In a tree, parents[i] < i
// is the parent of node i, or −1 if node i follows the text. Siblings differ and are in the order in which they were
// drawn; nodes are ordered by level.
struct VerifyInput {
  std::span<const int32_t> drafted;       // N tokens
  std::vector<std::span<const float>> p;  // N + 1 target rows [V]: p[0] after the text, p[i + 1] after node i
  // N draft rows [V]; empty if the tokens are from the sequence's own text. Siblings share a row. Each sibling was
  // drawn after its earlier siblings had been removed from the row.
  std::vector<std::span<const float>> q;
  // The text position of the next token. The coupled rule calls draw_at(position + depth).
  int64_t position = 0;
  std::span<const int32_t> parents = {};
};
using VerifyResult = rules::Verdict;

// The token and the block rule for chains.
VerifyResult verify_token(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);
VerifyResult verify_block(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);
// Rules for trees, which also accept chains: token (recursive rejection), block (traversal), target and coupled.
VerifyResult verify_recursive(const VerifyInput& input, Randomness& randomness);
VerifyResult verify_traversal(const VerifyInput& input, Randomness& randomness);
VerifyResult verify_target(const VerifyInput& input, Randomness& randomness);
VerifyResult verify_coupled(const VerifyInput& input, Randomness& randomness);

VerifyResult verify(VerifyRule rule, const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);

// Returns the index of the first child of `node` at or after index `from`, or −1 if there is none. As an argument, −1
// means the text before the draft. Takes time linear in N.
int32_t next_child(const VerifyInput& input, int32_t node, int32_t from = 0);

}  // namespace specdec::decode
