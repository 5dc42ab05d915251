// Random logits and random drafts with their distributions, and drafts as the kernel verify() takes them.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/philox.h"
#include "engine/decode/sampling/verifier.h"
#include "engine/kernels/cuda.h"

namespace specdec::self_test {

inline constexpr float kMasked = -std::numeric_limits<float>::infinity();

// Returns random logits, some of them kMasked; with `ties`, many are equal.
std::vector<float> random_logits(uint64_t number, size_t vocab, bool ties);

// A chain or tree of drafted tokens, drawn as a draft would draw them, with the distributions of both models.
struct RandomDraft {
  std::vector<int32_t> tokens, parents;  // no parents: a chain
  std::vector<std::vector<float>> p, q;
  int64_t position;
  decode::VerifyInput input() const;
};
// Returns the draft of a number. vocab 0: up to 201 tokens, by the number.
RandomDraft random_draft(uint64_t number, bool tree, size_t vocab = 0);

kernels::DeviceRule device_rule(VerifyRule rule, bool tree);

// The arrays of a pass of the kernel verify() over several drafts of one vocabulary.
struct VerifyArrays {
  std::vector<kernels::VerifyTask> tasks;
  std::vector<kernels::VerifyNode> nodes;
  std::vector<float> p, q;
  size_t vocab = 0;
  void add(const decode::VerifyInput& input, VerifyRule rule, uint64_t seed = 0);
  std::vector<int32_t> likeliest() const;  // of each row of p
};

}  // namespace specdec::self_test
