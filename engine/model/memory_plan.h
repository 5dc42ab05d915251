// What both models and their caches will take, planned before loading and checked against what the device has.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/model/config.h"

namespace specdec::model {

struct MemoryPlan {
  int64_t target_bytes = 0, draft_bytes = 0, target_cache_bytes = 0, draft_cache_bytes = 0, workspace_bytes = 0,
          available_bytes = 0;
  int64_t cache_bytes() const { return target_cache_bytes + draft_cache_bytes; }
  int64_t total() const { return target_bytes + draft_bytes + cache_bytes() + workspace_bytes; }
  bool target_int8 = false, draft_int8 = false;
  std::string text() const;  // "target 1.0 MiB + draft 0.5 MiB int8 + caches … = … of … available"
};
int64_t num_parameters(const DecoderConfig& config);
int64_t weight_bytes(const DecoderConfig& config,
                     at::ScalarType dtype);  // kChar: int8 with its scales, and what stays wide
// Of so many sequences in whole blocks (block_pool.h); the dtype is load_decoder()'s.
int64_t cache_bytes(const DecoderConfig& config, at::ScalarType dtype, int64_t sequences, int64_t tokens_per_sequence);
// The dtypes are load_decoder()'s. sequences × tokens of cache in both models. `draft` may be null.
MemoryPlan plan_memory(const DecoderConfig& target, at::ScalarType target_dtype, const DecoderConfig* draft,
                       at::ScalarType draft_dtype, int64_t sequences, int64_t tokens_per_sequence, at::Device device);
// What fits of a plan, for those who can do with less. Where it does not fit as asked, the caches are cut, down to a
// quarter and one sequence at its longest (answers are then suspended where they are full); else the draft's weights
// become int8, on a CPU and where `narrow_draft`; else the draft is left out. What fits not even then is as asked, for
// check_memory() to refuse. cache_bytes: of both models, instead of sequences × tokens; 0: none given. Throws
// Error(kUsage) where these do not hold one sequence.
struct FittedMemory {
  MemoryPlan plan;
  bool draft = false;
  at::ScalarType draft_dtype = at::kFloat;
  std::string given_up;  // a line for people; "": nothing
};
FittedMemory fit_memory(const DecoderConfig& target, at::ScalarType target_dtype, const DecoderConfig* draft,
                        at::ScalarType draft_dtype, int64_t sequences, int64_t tokens_per_sequence, at::Device device,
                        int64_t cache_bytes, bool narrow_draft, std::optional<int64_t> available = {});
void check_memory(const MemoryPlan& plan);  // throws Error(kDevice) saying what does not fit and what to do

}  // namespace specdec::model
