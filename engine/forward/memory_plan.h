// Plans the memory of target, draft and their caches before loading, and checks the plan against the device's available
// memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "engine/config/config.h"

namespace specdec::model {

struct MemoryPlan {
  int64_t target_bytes = 0, draft_bytes = 0, target_cache_bytes = 0, draft_cache_bytes = 0, workspace_bytes = 0,
          available_bytes = 0;
  int64_t cache_bytes() const { return target_cache_bytes + draft_cache_bytes; }
  int64_t total() const { return target_bytes + draft_bytes + cache_bytes() + workspace_bytes; }
  std::string target_weights, draft_weights;  // "int8", "int4" or "fp8" if products have such weights, else ""
  std::string text() const;  // such as "target 1.0 MiB + draft 0.5 MiB int8 + caches … = … of … available"
};
int64_t num_parameters(const DecoderConfig& config);
// Logs a warning if the draft has at least as many parameters as the target.
void warn_of_large_draft(const DecoderConfig& draft, const DecoderConfig& target);
// Returns the bytes of all weights or, with several ranks, of the largest rank's share. For kChar, the matrices of
// products count as int8 with their scales, and everything else as side_dtype(). For kAsStored, all matrices of layers
// count as quantised.
int64_t weight_bytes(const DecoderConfig& config, at::ScalarType dtype, int ranks = 1);
// Returns the bytes of the KV caches of `sequences` sequences, in whole blocks (block_pool.h). `dtype` is the one given
// to load_decoder().
int64_t cache_bytes(const DecoderConfig& config, at::ScalarType dtype, int64_t sequences, int64_t tokens_per_sequence);
// The memory that an EAGLE-3 head, a draft that reads the target's hidden states, needs. Its weights are not quantised.
struct HeadMemory {
  int64_t elements = 0;           // number of its weights, without those shared with the target
  int64_t state_width = 0;        // number of hidden-state values of the target that the head reads per position
  bool shares_embedding = false;  // whether the head uses the target's whole embedding
};
// What the memory is needed for: both models and, for each of them, caches of `sequences` × tokens_per_sequence tokens.
struct MemoryRequest {
  const DecoderConfig& target;
  at::ScalarType target_dtype;  // dtypes as given to load_decoder()
  const DecoderConfig* draft;   // may be null
  at::ScalarType draft_dtype;
  int64_t sequences, tokens_per_sequence;
  at::Device device;
  const HeadMemory* head = nullptr;  // if the draft is an EAGLE-3 head; `draft` then describes its layer
  // The number of ranks that hold the target together. The plan is for rank 0, which also holds the draft. On a CPU the
  // ranks share the machine's memory, so each rank may use an equal part of the available memory.
  int ranks = 1;
};
// Returns how much of a GPU's free memory a plan may use. Leaves 1 GiB or 2 % of the GPU's memory, whichever is more,
// for needs that the plan does not count: modules and workspaces of CUDA's libraries, and fragmentation.
int64_t plannable_bytes(int64_t free_bytes, int64_t total_bytes);
MemoryPlan plan_memory(const MemoryRequest& request);
// fit_memory() fits a plan to the available memory. If the request does not fit, it tries in this order:
//   1. smaller caches, of at least a quarter of the request and one sequence of full length. Sequences are preempted
//      while the caches are full.
//   2. if `narrow_draft` is set, int8 weights for the draft, and smaller caches if needed
//   3. no draft, and smaller caches if needed
// If even that does not fit, the plan is returned as requested, and check_memory() throws. cache_bytes, if not 0, is
// the size of both models' caches together and replaces sequences × tokens. Throws Error(kUsage) if cache_bytes is too
// small for one sequence. `available` replaces the device's available bytes.
struct FittedMemory {
  MemoryPlan plan;
  bool draft = false;
  at::ScalarType draft_dtype = at::kFloat;
  std::string given_up;  // sentence for the user about what was reduced; empty: nothing
};
FittedMemory fit_memory(const MemoryRequest& request, int64_t cache_bytes, bool narrow_draft,
                        std::optional<int64_t> available = {});
// Throws Error(kDevice) if the plan does not fit. The message tells what does not fit and what to do.
void check_memory(const MemoryPlan& plan);

}  // namespace specdec::model
