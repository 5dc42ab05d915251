// Verification rules (token: Leviathan et al. 2023, arXiv 2211.17192; block: Sun et al. 2024, arXiv 2403.10444; coupled: Gumbel noise
// shared by position, Daliri et al. 2024, arXiv 2408.07978): given drafted tokens and both distributions, how many are kept and what
// follows. Under the coupled rule the text is that of plain decoding under the same seed for every draft and K; it accepts with at
// least (1 − TV) / (1 + TV), the other two with 1 − TV.
// Pure functions over host rows; all randomness through Randomness.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/run_options.h"
#include "engine/decode/randomness.h"

namespace specdec::decode {

struct VerifyInput {
  std::span<const int32_t> drafted;               // K tokens, drafted[i] drawn from q[i]
  std::vector<std::span<const float>> p;          // K + 1 target rows [V]
  std::vector<std::span<const float>> q;          // K draft rows [V], the very distributions drawn from
  int64_t position = 0;                           // of drafted[0] in the text; coupled: drafted[i] = draw_at(position + i, q[i])
};
struct VerifyResult {
  int64_t accepted = 0;   // 0..K
  int32_t next = -1;      // the correction, or the bonus token when all were accepted
};
VerifyResult verify_token(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);
VerifyResult verify_block(const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);
VerifyResult verify_coupled(const VerifyInput& input, Randomness& randomness);
VerifyResult verify(VerifyRule rule, const VerifyInput& input, Randomness& randomness, std::vector<float>& scratch);

}  // namespace specdec::decode
