// Plans the memory of both models and their caches before loading, and checks the plan against the device's available
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
  std::string target_weights, draft_weights;  // "int8", "int4" or "fp8" where products have such weights
  std::string text() const;  // such as "target 1.0 MiB + draft 0.5 MiB int8 + caches … = … of … available"
};
int64_t num_parameters(const DecoderConfig& config);
// Logs a warning if the draft has as many parameters as the target or more.
void warn_of_large_draft(const DecoderConfig& draft, const DecoderConfig& target);
// Returns the bytes of all weights, or of the largest share that one of several ranks holds. For kChar, the matrices of
// products count as int8 with their scales, and everything else as side_dtype(). For kAsStored, all matrices of layers
// count as quantised.
int64_t weight_bytes(const DecoderConfig& config, at::ScalarType dtype, int ranks = 1);
// Returns the bytes of this many sequences' caches in whole blocks (block_pool.h). `dtype` is the one given to
// load_decoder().
int64_t cache_bytes(const DecoderConfig& config, at::ScalarType dtype, int64_t sequences, int64_t tokens_per_sequence);
// The memory that a draft needs if it is a head, which reads the target's hidden states. Its weights are not quantised.
struct HeadMemory {
  int64_t elements = 0;           // of its weights, without what it shares with the target
  int64_t state_width = 0;        // elements of the target's states that it reads at a position
  bool shares_embedding = false;  // the target's, as a whole
};
// Describes what must fit into memory: both models and, for each of them, caches of `sequences` × tokens_per_sequence
// tokens.
struct MemoryRequest {
  const DecoderConfig& target;
  at::ScalarType target_dtype;  // dtypes as given to load_decoder()
  const DecoderConfig* draft;   // may be null
  at::ScalarType draft_dtype;
  int64_t sequences, tokens_per_sequence;
  at::Device device;
  const HeadMemory* head = nullptr;  // if the draft is a head; `draft` then describes its layers
  // The number of ranks that hold the target together. The plan is that of rank 0, which also holds the draft. On a CPU
  // the ranks share its memory, so a rank may take an equal part of what is available.
  int ranks = 1;
};
// Returns how much of a GPU's free memory a plan may use. It leaves 1 GiB or 2 % of the GPU's memory, whichever is
// more, to what no plan counts: the modules and workspaces of CUDA's libraries, and fragmentation.
int64_t plannable_bytes(int64_t free_bytes, int64_t total_bytes);
MemoryPlan plan_memory(const MemoryRequest& request);
// fit_memory() fits a plan to the available memory. If the request does not fit, the caches are reduced, but not below
// a quarter of the request or below one sequence of full length; sequences are then preempted when the caches are full.
// If that is not enough, the draft's weights become int8, if `narrow_draft`. If that is not enough either,
// the draft is left out. If even that does not fit, the plan is returned as requested, and check_memory() throws.
// cache_bytes, if not 0, is the size of both models' caches together, instead of sequences × tokens. Throws
// Error(kUsage) if cache_bytes does not hold one sequence. `available` replaces the device's available bytes.
struct FittedMemory {
  MemoryPlan plan;
  bool draft = false;
  at::ScalarType draft_dtype = at::kFloat;
  std::string given_up;  // user-readable sentence about what was reduced; empty: nothing
};
FittedMemory fit_memory(const MemoryRequest& request, int64_t cache_bytes, bool narrow_draft,
                        std::optional<int64_t> available = {});
// Throws Error(kDevice) if the plan does not fit; the message says what does not fit and what to do.
void check_memory(const MemoryPlan& plan);

}  // namespace specdec::model
