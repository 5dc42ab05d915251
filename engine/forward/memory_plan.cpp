#include "engine/forward/memory_plan.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "engine/cache/block_pool.h"
#include "engine/forward/pass_graphs.h"
#include "engine/forward/row_product.h"
#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/cuda_errors.h"
#include "engine/kernels/paged_rows.h"
#include "engine/kernels/quantised_matrix.h"
#include "engine/weights/weights.h"

namespace specdec::model {

namespace {

std::string human(int64_t bytes) {
  const bool large = bytes >= (int64_t{1} << 30);
  std::ostringstream text;
  text.setf(std::ios::fixed);
  text.precision(1);
  text << static_cast<double>(bytes) / (large ? 1 << 30 : 1 << 20) << (large ? " GiB" : " MiB");
  return text.str();
}

int64_t read_number(const std::string& file) {  // −1 if the file is absent or says "max"
  std::ifstream in(file);
  int64_t value = 0;
  return in >> value ? value : -1;
}

// Returns the smaller of two limits: the machine's available memory, and the memory that this process's control group
// may still use.
int64_t available_host_bytes() {
  int64_t available = std::numeric_limits<int64_t>::max();
  std::ifstream in("/proc/meminfo");
  for (std::string key, unit; in >> key;) {
    int64_t kib = 0;
    in >> kib >> unit;
    if (key == "MemAvailable:") available = kib * 1024;
  }
  const int64_t limit = read_number("/sys/fs/cgroup/memory.max"), used = read_number("/sys/fs/cgroup/memory.current");
  if (limit >= 0 && used >= 0) available = std::min(available, std::max<int64_t>(0, limit - used));
  return available;
}

int64_t available_bytes(at::Device device) {
  if (!device.is_cuda()) return available_host_bytes();
  int64_t free = 0, total = 0;
  const auto& cuda = kernels::cuda_library();
  const int32_t code = cuda.memory(device.index(), &free, &total);
  if (code != 0) kernels::throw_cuda_error(code, device.str() + ": memory cannot be read", cuda.error_text(code));
  return plannable_bytes(free, total);
}

// Returns the bytes of one pass over `rows` tokens: activations and fp32 logits.
int64_t pass_bytes(const DecoderConfig& config, int64_t rows, int64_t logit_rows) {
  const int64_t inner = std::max(config.intermediate_size, config.experts_per_token * config.expert_intermediate_size);
  const int64_t width =
      4 * config.hidden_size + 2 * inner + (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim;
  return 4 * (rows * width + logit_rows * config.vocab_size);
}

// Returns the bytes of attention's workspace on CUDA for one sequence with up to 16 rows in a pass. Attention divides a
// long sequence into splits, stores the sums of each split and merges them (paged_attention.h).
int64_t attention_bytes(const DecoderConfig& config, int64_t tokens) {
  constexpr int64_t kRows = 16, kLeastSplit = 128;
  const int64_t splits = std::min(kernels::kPagedSplits, (tokens + kLeastSplit - 1) / kLeastSplit);
  return 4 * kRows * config.num_heads * splits * (config.head_dim + 2);
}

kernels::Packing packing_of(const Quantisation& quantisation) {
  return quantisation.method == Quantisation::Method::kFp8 ? kernels::Packing::kE4m3
         : quantisation.bits == 4                          ? kernels::Packing::kCodes4
                                                           : kernels::Packing::kCodes8;
}
// Returns the bytes of a matrix that stays quantised, or 0 if it cannot stay quantised. fp8 scales are counted as one
// per block.
int64_t quantised_bytes(const Quantisation& quantisation, const std::vector<int64_t>& shape) {
  const bool fp8 = quantisation.method == Quantisation::Method::kFp8;
  const int64_t group = fp8 ? quantisation.block_columns : quantisation.group_size;
  if (quantisation.method == Quantisation::Method::kNone || shape[0] % 4 != 0) return 0;
  return shape[0] * kernels::packed_row_bytes(packing_of(quantisation), shape[1], group);
}

// Returns the type of the weights of matrix products: "int8", "int4", "fp8" or "as in the GGUF file", or "" if they
// have 16 or 32 bits.
std::string name_of_weights(const DecoderConfig& config, at::ScalarType dtype) {
  if (dtype == at::kChar) return "int8";
  if (dtype != kAsStored) return "";
  if (config.quantisation.method == Quantisation::Method::kGguf) return "as in the GGUF file";
  const kernels::Packing packing = packing_of(config.quantisation);
  return packing == kernels::Packing::kE4m3 ? "fp8" : packing == kernels::Packing::kCodes4 ? "int4" : "int8";
}

// Returns the bytes of the layers' largest quantised matrix after dequantisation to 16 bits. A prefill dequantises one
// matrix at a time.
int64_t dequantised_bytes(const DecoderConfig& config) {
  DecoderWeights none;
  int64_t most = 0;
  for (const Parameter& p : list_parameters(none, config))
    if (stays_quantised(p)) most = std::max(most, 2 * c10::multiply_integers(p.shape));
  return most;
}

}  // namespace

std::string MemoryPlan::text() const {
  const auto weights = [](int64_t bytes, const std::string& of) { return human(bytes) + (of.empty() ? "" : " " + of); };
  return "target " + weights(target_bytes, target_weights) + " + draft " + weights(draft_bytes, draft_weights) +
         " + caches " + human(cache_bytes()) + " + workspace " + human(workspace_bytes) + " = " + human(total()) +
         " of " + human(available_bytes) + " available";
}

int64_t num_parameters(const DecoderConfig& config) {
  DecoderWeights none;
  int64_t total = 0;
  for (const Parameter& p : list_parameters(none, config)) total += c10::multiply_integers(p.shape);
  return total;
}

void warn_of_large_draft(const DecoderConfig& draft, const DecoderConfig& target) {
  const int64_t own = num_parameters(draft), whole = num_parameters(target);
  if (own < whole) return;
  log(LogLevel::kWarn, "the draft has " + std::to_string(own) + " parameters and the target " + std::to_string(whole) +
                           ": a draft as large as its target cannot be faster");
}

int64_t weight_bytes(const DecoderConfig& config, at::ScalarType dtype, int ranks) {
  DecoderWeights none;
  const auto wide = static_cast<int64_t>(c10::elementSize(side_dtype(dtype, config)));
  const auto int8 = [](const std::vector<int64_t>& shape) {
    return shape[0] * kernels::cpu::pack_row_bytes<kernels::cpu::Int8>(nullptr, shape[1]);
  };
  if (dtype == kAsStored && config.quantisation.method == Quantisation::Method::kGguf)
    return config.quantisation.file_bytes + wide * config.vocab_size * config.hidden_size;
  int64_t total = 0;
  for (const Parameter& p : list_parameters(none, config)) {
    std::vector<int64_t> shape = p.shape;
    const Slice slice = slice_of(ranks > 1 ? p.split : Split::kNone, shape, config, ranks - 1, ranks);
    shape[static_cast<size_t>(slice.dim)] = slice.share.length;
    const int64_t quantised =
        dtype == kAsStored && stays_quantised(p) ? quantised_bytes(config.quantisation, shape) : 0;
    total += quantised != 0                        ? quantised
             : dtype == at::kChar && p.in_products ? int8(shape)
                                                   : wide * c10::multiply_integers(shape);
  }
  if (dtype != at::kChar || !config.tie_embeddings) return total;
  return total + int8({share_of(config.vocab_size, ranks - 1, ranks).length, config.hidden_size});
}

int64_t cache_bytes(const DecoderConfig& config, at::ScalarType dtype, int64_t sequences, int64_t tokens_per_sequence) {
  const int64_t blocks = (tokens_per_sequence + BlockPool::kTokens - 1) / BlockPool::kTokens;
  return sequences * blocks * BlockPool::block_bytes(config, side_dtype(dtype, config));
}

int64_t plannable_bytes(int64_t free_bytes, int64_t total_bytes) {
  return std::max<int64_t>(0, free_bytes - std::max(int64_t{1} << 30, total_bytes / 50));
}

MemoryPlan plan_memory(const MemoryRequest& request) {
  constexpr int64_t kPromptRows = 512, kLogitRows = 16;  // rows of a prefill chunk; rows verified at once per sequence
  MemoryPlan plan;
  // Returns the bytes for CUDA graphs. A 16-bit decoder that a single process holds runs its decoding passes as
  // graphs.
  const auto graph_bytes = [&](const DecoderConfig& config, at::ScalarType dtype) {
    const at::ScalarType side = side_dtype(dtype, config);
    return request.device.is_cuda() && side != at::kFloat ? PassGraphs::bytes(config, side) : 0;
  };
  const auto add = [&](const DecoderConfig& config, at::ScalarType dtype, int64_t& caches) {
    caches = cache_bytes(config, dtype, request.sequences, request.tokens_per_sequence);
    const int64_t logit_rows = request.sequences * kLogitRows;
    plan.workspace_bytes += pass_bytes(config, std::max(kPromptRows, logit_rows), logit_rows);
    if (request.device.is_cuda())
      plan.workspace_bytes += request.sequences * attention_bytes(config, request.tokens_per_sequence);
    if (dtype == kAsStored && request.device.is_cpu())
      plan.workspace_bytes +=
          4 * at::get_num_threads() *
          RowProduct<float>::split_floats(kPromptRows, std::max(config.hidden_size, config.intermediate_size));
    if (dtype == kAsStored && request.device.is_cuda()) plan.workspace_bytes += dequantised_bytes(config);
  };
  const int ranks = request.ranks;
  add(ranks > 1 ? shard_config(request.target, ranks - 1, ranks) : request.target, request.target_dtype,
      plan.target_cache_bytes);
  plan.target_bytes = weight_bytes(request.target, request.target_dtype, ranks);
  if (request.draft) {
    add(*request.draft, request.draft_dtype, plan.draft_cache_bytes);
    plan.draft_bytes = weight_bytes(*request.draft, request.draft_dtype);
    if (!request.head && ranks == 1) plan.workspace_bytes += graph_bytes(*request.draft, request.draft_dtype);
  }
  if (ranks == 1) plan.workspace_bytes += graph_bytes(request.target, request.target_dtype);
  if (request.draft && request.head) {
    const HeadMemory& head = *request.head;
    const auto element = static_cast<int64_t>(c10::elementSize(request.draft_dtype));
    plan.draft_bytes = element * head.elements;
    // The ranks divide the target's embedding, but the head needs a whole copy.
    if (ranks > 1 && head.shares_embedding)
      plan.draft_bytes += static_cast<int64_t>(c10::elementSize(side_dtype(request.target_dtype, request.target))) *
                          request.target.vocab_size * request.target.hidden_size;
    // The target's hidden states of a prefill chunk are stored for the head.
    plan.workspace_bytes += request.sequences * kPromptRows * head.state_width * element;
  }
  plan.target_weights = name_of_weights(request.target, request.target_dtype);
  if (request.draft) plan.draft_weights = name_of_weights(*request.draft, request.draft_dtype);
  plan.available_bytes = available_bytes(request.device) / (request.device.is_cpu() ? ranks : 1);
  return plan;
}

FittedMemory fit_memory(const MemoryRequest& request, int64_t cache_bytes, bool narrow_draft,
                        std::optional<int64_t> available) {
  constexpr int64_t kCachePart = 4;
  std::optional<FittedMemory> asked;
  const auto attempt = [&](const DecoderConfig* with, at::ScalarType dtype, const char* change) -> bool {
    MemoryRequest changed = request;
    changed.draft = with;
    changed.draft_dtype = dtype;
    FittedMemory fit{plan_memory(changed), with != nullptr, dtype, change};
    MemoryPlan& plan = fit.plan;
    if (available) plan.available_bytes = *available;
    const auto scaled = [&plan](int64_t total) {
      const double part = static_cast<double>(total) / static_cast<double>(plan.cache_bytes());
      MemoryPlan out = plan;
      out.target_cache_bytes = static_cast<int64_t>(static_cast<double>(plan.target_cache_bytes) * part);
      out.draft_cache_bytes = static_cast<int64_t>(static_cast<double>(plan.draft_cache_bytes) * part);
      return out;
    };
    const int64_t one = plan.cache_bytes() / request.sequences;
    if (cache_bytes > 0) {
      if (cache_bytes < one)
        throw Error(ErrorKind::kUsage, "caches of " + human(cache_bytes) + " hold no answer of " +
                                           std::to_string(request.tokens_per_sequence) + " tokens, which takes " +
                                           human(one) + " in both models: give them more, or a shorter context");
      plan = scaled(cache_bytes);
    }
    const bool fits = plan.total() <= plan.available_bytes;
    if (!fits) {
      const int64_t room = plan.available_bytes - (plan.total() - plan.cache_bytes()), wanted = plan.cache_bytes();
      if (room >= std::max(one, wanted / kCachePart)) {
        plan = scaled(room);
        fit.given_up += std::string(fit.given_up.empty() ? "" : ", and ") + "the caches have " + human(room) +
                        " instead of " + human(wanted) + ": answers are suspended while they are full";
      }
    }
    if (!asked) asked = fit;
    if (plan.total() > plan.available_bytes) return false;
    if (!fit.given_up.empty()) fit.given_up = "memory is short: " + fit.given_up;
    asked = std::move(fit);
    return true;
  };
  if (attempt(request.draft, request.draft_dtype, "") || !request.draft) return *asked;
  if (narrow_draft && request.draft_dtype != at::kChar && request.draft_dtype != kAsStored &&
      attempt(request.draft, at::kChar, "the draft's weights are int8"))
    return *asked;
  attempt(nullptr, request.draft_dtype, "the draft is left out, and answers come at plain speed");
  return *asked;
}

void check_memory(const MemoryPlan& plan) {
  if (plan.total() <= plan.available_bytes) return;
  throw Error(ErrorKind::kDevice,
              "not enough memory: " + plan.text() + "; use a smaller batch or context, or a narrower --dtype");
}

}  // namespace specdec::model
