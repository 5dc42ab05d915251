// Loads the pair of models for every engine command. It finds the directories, checks the binding, plans memory and
// reads both models, so that generate, validate, bench and serve agree.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/model_directory.h"
#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/binding.h"
#include "deploy/models/tensor_ranks.h"
#include "engine/decode/runners/draft.h"
#include "engine/forward/memory_plan.h"
#include "engine/weights/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

struct PairOptions {
  std::string target;  // MODEL; if it is a package, its own draft is used too, unless `draft` names another
  std::string draft;   // MODEL; empty = none
  DeviceOptions device;
  bool allow_stale = false;
  bool speculate = true;  // false: a package's own draft is not used
  // The user's --k if only a draft model can propose the tokens, else 0 (--suffix proposes them without one). If it is
  // above 0, a pair without a draft is refused before it is loaded.
  int drafts_wanted = 0;
  // false: the chat template is not loaded. Checking it forks the process, which is unsafe while other threads run.
  bool chat = true;
  int64_t sequences = 1;            // for the memory plan
  int64_t tokens_per_sequence = 0;  // for the memory plan; 0 = the target's maximum
  // true: if memory is short, the KV caches are reduced, and then the draft is quantised or left out
  // (model::fit_memory).
  bool may_give_up = false;
  // Bytes for both models' KV caches together, used only with may_give_up. 0 = sequences × tokens_per_sequence.
  int64_t cache_bytes = 0;
  // Above 1, this many processes of this machine hold the target together (tensor_ranks.h), and LoadedPair::ranks are
  // set. rank_command and on_lost are those of TensorRankOptions.
  int tensor_parallel = 1;
  std::vector<std::string> rank_command = {};
  std::function<void(const Error&)> on_rank_lost = {};
  // Called before the memory check and before any model is loaded. May be empty.
  std::function<void(const model::MemoryPlan&)> on_plan;
  ProgressFn progress = {};  // of the loading
};

// Holds a loaded target and its draft. The models lock the packages that they come from, so that `package gc` keeps
// these. If `binding` is kStale and `target` is null, the draft is stale, allow_stale was not set, and nothing was
// loaded. The caller then prints `warning` and returns exit code 5.
struct LoadedPair {
  // draft_dir is empty if the pair has no draft; it stays set if memory is too short to load the draft.
  std::filesystem::path target_dir, draft_dir;
  std::string package_digest;
  std::unique_ptr<TensorRanks> ranks;               // null: the target is whole
  std::shared_ptr<const model::Decoder> target;     // with `ranks` this process's share
  model::DecoderConfig config;                      // of the whole target; eos_ids with the tokenizer's eos_token
  decode::DraftPtr draft;                           // may be null
  std::unique_ptr<text::Tokenizer> tokenizer;       // the target's
  std::optional<text::ChatTemplate> chat_template;  // the target's, if it has one and it was requested
  BindingState binding = BindingState::kUnbound;    // kBound if there is no draft
  std::string warning;                              // one line if the draft is unbound or stale, else ""
  model::MemoryPlan plan;
  std::string given_up;            // one line if memory was short, else ""
  std::vector<std::string> notes;  // one line each: what is odd about the target's tokenizer
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of the target

  // Makes the runner of the target, and gives it the runner of its rounds (decode::with_rounds()). `cache_bytes` is as
  // for decode::make_model_runner().
  std::unique_ptr<decode::CausalModel> make_target_runner(int64_t cache_bytes = 0) const;
  // Returns the dtype, as --dtype names it, in which the target's activations are computed.
  std::string arithmetic() const;
  // Returns the number of CPU threads that a timed step needs. On a GPU this is only the one that launches the kernels.
  int timed_threads() const { return device.is_cuda() ? 1 : at::get_num_threads(); }
};
// Loads in this order: resolve, binding (before all other errors), configs and vocabularies, memory plan and check,
// tokenizer, weights. Throws Error(kModel | kDevice | kUsage | kIo). Sets the CPU thread count if device.threads > 0.
LoadedPair load_pair(const PairOptions& options);

// Returns the id of the eos_token of a model's tokenizer, -1 if it names none. Throws Error(kModel).
int32_t tokenizers_end(const std::filesystem::path& directory);

struct LoadedDraft {
  std::filesystem::path directory;
  decode::DraftPtr draft;
  std::string warning;      // as in LoadedPair
  int64_t cache_bytes = 0;  // planned for the draft's KV cache
};
// Loads another draft, options.draft, for the target of a loaded pair, in the same order as load_pair(). Its memory is
// needed on top of what is in use. Throws what load_pair() throws, and Error(kModel) for a stale draft unless
// options.allow_stale.
LoadedDraft load_draft(const LoadedPair& pair, const PairOptions& options);

}  // namespace specdec::deploy
