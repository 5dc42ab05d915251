// Random logits, random drafts with their distributions, and drafts in the form that the kernel verify() reads.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "engine/decode/sampling/verifier.h"
#include "engine/kernels/cuda.h"

namespace specdec::self_test {

inline constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Returns random logits, some of which are kMasked; with `ties`, many are equal.
std::vector<float> random_logits(uint64_t number, size_t vocab, bool ties);

// A chain or tree of tokens drawn from random draft distributions q, with random target distributions p.
struct RandomDraft {
  std::vector<int32_t> tokens, parents;  // parents is empty for a chain
  std::vector<std::vector<float>> p, q;
  int64_t position;
  decode::VerifyInput input() const;
};
// Returns the random draft number `number`. vocab 0: the number determines the vocabulary size, at most 201.
RandomDraft random_draft(uint64_t number, bool tree, size_t vocab = 0);

kernels::DeviceRule device_rule(VerifyRule rule, bool tree);

// The input arrays of the kernel verify() for several drafts with one vocabulary.
struct VerifyArrays {
  std::vector<kernels::VerifyTask> tasks;
  std::vector<kernels::VerifyNode> nodes;
  std::vector<float> p, q;
  size_t vocab = 0;
  void add(const decode::VerifyInput& input, VerifyRule rule, uint64_t seed = 0);
  std::vector<int32_t> likeliest() const;  // one per row of p
};

}  // namespace specdec::self_test
