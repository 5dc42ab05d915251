// Loads a target and its draft for every engine command: finds the directories, checks the binding, plans memory and
// reads both models. So generate, validate, bench and serve treat a pair alike.
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
  // MODEL argument: package, directory or hub name. The draft in a package is used, too, if `draft` is "".
  std::string target;
  std::string draft;  // MODEL argument; "" = none
  DeviceOptions device;
  bool allow_stale = false;
  bool speculate = true;  // false: a package's own draft is not used
  // The user's --k, or 0 if --suffix is set, because suffix drafting proposes tokens without a draft model. If
  // drafts_wanted is above 0 and the pair has no draft, load_pair() fails before it loads anything.
  int drafts_wanted = 0;
  // false: the chat template is not loaded. Checking it forks the process, which is unsafe while other threads run.
  bool chat = true;
  int64_t sequences = 1;            // number of sequences that the memory plan assumes
  int64_t tokens_per_sequence = 0;  // length that the memory plan assumes; 0 = the target's maximum
  // What happens if memory is short. true: the KV caches are made smaller, and if that does not suffice, the draft is
  // quantised or left out (model::fit_memory). false: loading fails.
  bool may_give_up = false;
  // Bytes for the KV caches of target and draft together, used only with may_give_up. 0: as many bytes as `sequences`
  // sequences of tokens_per_sequence tokens need.
  int64_t cache_bytes = 0;
  // Above 1: this many processes of this machine hold the target together (tensor_ranks.h), and LoadedPair::ranks is
  // set. rank_command and on_rank_lost are passed on as TensorRankOptions::command and on_lost.
  int tensor_parallel = 1;
  std::vector<std::string> rank_command = {};
  std::function<void(const Error&)> on_rank_lost = {};
  // Called before the memory check and before any model is loaded. May be empty.
  std::function<void(const model::MemoryPlan&)> on_plan;
  ProgressFn progress = {};  // progress of loading the models
};

// A loaded target and its draft. While the models exist, the packages that contain them are locked, so that `package
// gc` does not remove them. If `binding` is kStale and `target` is null, the draft is stale, allow_stale was not set,
// and nothing was loaded. The caller then prints `warning` and returns exit code 5.
struct LoadedPair {
  // draft_dir is empty if the pair has no draft; it stays set if memory is too short to load the draft.
  std::filesystem::path target_dir, draft_dir;
  std::string package_digest;
  std::unique_ptr<TensorRanks> ranks;               // null: this process holds the whole target
  std::shared_ptr<const model::Decoder> target;     // the whole target; with `ranks`, only this process's shard
  model::DecoderConfig config;                      // the whole target's; eos_ids include the tokenizer's eos_token
  decode::DraftPtr draft;                           // null: the pair has no draft
  std::unique_ptr<text::Tokenizer> tokenizer;       // the target's
  std::optional<text::ChatTemplate> chat_template;  // the target's; none if it has none or PairOptions::chat is false
  BindingState binding = BindingState::kUnbound;    // kBound if there is no draft
  std::string warning;                              // one line if the draft is unbound or stale, else ""
  model::MemoryPlan plan;
  std::string given_up;            // one line that says what was reduced or left out because memory was short, else ""
  std::vector<std::string> notes;  // oddities of the target's tokenizer, one line each
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // dtype of the target

  // Makes the runner that decodes with the target; drafting and verification run on the host or, if possible, on the
  // GPU (decode::with_rounds()). `cache_bytes` is the size of the runner's KV cache, as for
  // decode::make_model_runner().
  std::unique_ptr<decode::CausalModel> make_target_runner(int64_t cache_bytes = 0) const;
  // Returns the dtype in which the target's activations are computed, as --dtype names it.
  std::string arithmetic() const;
  // Returns the number of CPU threads that a timed step needs. On a GPU only the thread that launches the kernels
  // counts.
  int timed_threads() const { return device.is_cuda() ? 1 : at::get_num_threads(); }
};
// Loads a pair in this order: resolves the names, checks the binding (a stale draft is reported before any other
// error), reads configs and vocabularies, plans and checks memory, then loads tokenizer and weights. Throws
// Error(kModel | kDevice | kUsage | kIo). Sets the CPU thread count if device.threads > 0.
LoadedPair load_pair(const PairOptions& options);

// Returns the id of the eos_token of the tokenizer in `directory`, -1 if it names none. Throws Error(kModel).
int32_t tokenizers_end(const std::filesystem::path& directory);

struct LoadedDraft {
  std::filesystem::path directory;
  decode::DraftPtr draft;
  std::string warning;      // a warning as in LoadedPair::warning
  int64_t cache_bytes = 0;  // size planned for the draft's KV cache
};
// Loads another draft, options.draft, for the target of a loaded pair, in the same order as load_pair(). The draft must
// fit the memory that is free now. Throws what load_pair() throws, and Error(kModel) for a stale draft unless
// options.allow_stale.
LoadedDraft load_draft(const LoadedPair& pair, const PairOptions& options);

}  // namespace specdec::deploy
