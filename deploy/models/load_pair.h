// The pair every engine command loads: one place that finds directories, checks the binding, plans memory
// and reads both models, so that generate, validate, bench and serve agree.
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
#include "base/run_options.h"
#include "base/schema/binding.h"
#include "engine/model/memory_plan.h"
#include "engine/model/weights.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace specdec::deploy {

struct PairOptions {
  std::string target;  // MODEL; of a package its draft is used too unless `draft` names another
  std::string draft;   // MODEL, empty = none
  DeviceOptions device;
  bool allow_stale = false;
  bool speculate = true;            // false: a package's own draft is left out
  bool chat = true;                 // false: the chat template is left out (vetting it forks: not beside other threads)
  int64_t sequences = 1;            // for the memory plan
  int64_t tokens_per_sequence = 0;  // for the memory plan; 0 = the target's longest
  // where memory is short: caches are cut, the draft is quantised or left out (model::fit_memory)
  bool may_give_up = false;
  int64_t cache_bytes = 0;  // of both models' caches, with may_give_up; 0 = sequences × tokens
  // called before anything is loaded, and before the check; may be empty
  std::function<void(const model::MemoryPlan&)> on_plan;
};

// Everything a command needs of a target and its draft. The models hold the packages they came from (package gc).
// `binding` == kStale with `target` null means: not allowed, nothing was loaded; the caller prints `warning` and
// returns exit code 5.
struct LoadedPair {
  std::filesystem::path target_dir, draft_dir;  // draft_dir empty without a draft
  std::string package_digest;
  std::shared_ptr<const model::Decoder> target, draft;  // draft may be null
  std::unique_ptr<text::Tokenizer> tokenizer;           // the target's
  std::optional<text::ChatTemplate> chat_template;      // the target's, if it has one and it was asked for
  BindingState binding = BindingState::kUnbound;        // kBound where there is no draft
  std::string warning;                                  // one line when the draft is unbound or stale, else ""
  model::MemoryPlan plan;
  std::string given_up;  // one line where memory was short, else ""
  at::Device device = at::kCPU;
  at::ScalarType dtype = at::kFloat;  // of the target

  // CPU threads that a timed step waits for: on a GPU only the one that starts its work.
  int timed_threads() const { return device.is_cuda() ? 1 : at::get_num_threads(); }
};
// Order: resolve, binding (before everything else), configs and vocabularies, memory plan and check, weights,
// tokenizer. Throws Error(kModel | kDevice | kUsage | kIo). Sets the CPU thread count when device.threads > 0.
LoadedPair load_pair(const PairOptions& options);

struct LoadedDraft {
  std::filesystem::path directory;
  std::shared_ptr<const model::Decoder> draft;
  std::string warning;      // as of a pair
  int64_t cache_bytes = 0;  // planned for it
};
// Another draft, options.draft, for the target of a pair that is loaded; its memory comes on top of what is used. The
// same order. Throws as load_pair() does, and Error(kModel) for a stale draft unless options.allow_stale.
LoadedDraft load_draft(const LoadedPair& pair, const PairOptions& options);

}  // namespace specdec::deploy
