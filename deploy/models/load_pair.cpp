#include "deploy/models/load_pair.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/file_lock.h"
#include "base/schema/package_manifest.h"
#include "engine/decode/device/device_round.h"
#include "engine/decode/runners/model_runner.h"
#include "engine/forward/device_errors.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/visible_devices.h"

namespace specdec::deploy {

namespace {

// A draft's directory and its binding. For a draft inside a package, `made_for` is the target that the package's
// manifest names.
struct Draft {
  fs::path directory;
  std::optional<Fingerprint> made_for;
  std::string stale_reason = {};  // why the draft's package is stale; "" = not stale, or the draft is not packaged
  std::shared_ptr<const DirectoryLock> hold = {};
  std::shared_ptr<const VerifiedFiles> verified = {};
};
// Finds the draft that the options name, or else the draft in the target's package. The caller resolves `target` and
// passes it in, because a second look-up could find another package if a channel was moved meanwhile.
Draft find_draft(const PairOptions& options, const ResolvedModel& target) {
  const bool own = options.draft.empty();
  if (own && (target.package_digest.empty() || !options.speculate)) return {};
  const ResolvedModel model = own ? target : resolve_model(options.draft);
  if (model.draft.empty()) return {model.directory, std::nullopt};
  return {model.draft, read_manifest(model.draft.parent_path()).target, model.stale_reason, model.hold, model.verified};
}

// Throws if the files have changed since their digests were verified.
void require_unchanged(const std::shared_ptr<const VerifiedFiles>& files) {
  if (files) files->require_unchanged();
}

// Returns the model together with the lock on its package, so that `package gc` keeps the package as long as the
// weights are in use.
template <class Model>
std::shared_ptr<const Model> keep(std::shared_ptr<const Model> model,
                                  const std::shared_ptr<const DirectoryLock>& hold) {
  const Model* const shared = model.get();
  return std::shared_ptr<const Model>(shared, [model = std::move(model), hold](const Model*) {});
}

BindingCheck check(const fs::path& target, const Draft& draft) {
  if (!draft.made_for) return check_binding(target, draft.directory);
  const Fingerprint found = fingerprint_model(target);
  if (found == *draft.made_for) return {BindingState::kBound, ""};
  return {BindingState::kStale, draft.directory.string() +
                                    " was packaged for another target: " + differing_tiers(*draft.made_for, found) +
                                    " differ (made for " + draft.made_for->id.substr(0, 12) + ", " + target.string() +
                                    " is " + found.id.substr(0, 12) + ")"};
}

std::string unbound(const fs::path& draft) {
  return draft.string() +
         " is not bound to a target (no specdec.json), so that a changed target is not noticed: specdec distill binds "
         "the draft that it makes, and specdec package the pair that its report measured";
}

decode::DraftConfig draft_config_for(const model::DecoderConfig& target, const fs::path& draft) {
  decode::DraftConfig found = decode::load_draft_config(draft, target);
  if (found.config.vocab_size != target.vocab_size)
    throw Error(ErrorKind::kModel, (draft / "config.json").string() + ": vocab_size: expected the target's " +
                                       std::to_string(target.vocab_size) + ", found " +
                                       std::to_string(found.config.vocab_size));
  return found;
}

// Records the draft and its binding in the pair. Returns false for a stale draft, unless `allow_stale`.
bool accept_draft(const Draft& draft, bool allow_stale, LoadedPair& pair) {
  pair.draft_dir = draft.directory;
  pair.binding = BindingState::kBound;
  if (draft.directory.empty()) return true;
  const BindingCheck binding = check(pair.target_dir, draft);
  pair.binding = binding.state;
  if (binding.state == BindingState::kStale) pair.warning = binding.reason;
  if (binding.state == BindingState::kUnbound) pair.warning = unbound(draft.directory);
  return binding.state != BindingState::kStale || allow_stale;
}

int64_t planned_tokens(const PairOptions& options, const model::DecoderConfig& target) {
  return options.tokens_per_sequence > 0 ? std::min(options.tokens_per_sequence, target.max_position)
                                         : target.max_position;
}

// Throws unless there is one GPU for each process that will hold a part of the target (--tensor-parallel).
void check_gpus(const PairOptions& options) {
  if (options.device.device.starts_with("cuda:"))
    throw Error(ErrorKind::kUsage,
                "--tensor-parallel takes the first GPUs that are visible: give --device cuda, and choose them by "
                "CUDA_VISIBLE_DEVICES");
  const int visible = kernels::cuda_device_count();
  if (visible < options.tensor_parallel)
    throw Error(ErrorKind::kUsage, "--tensor-parallel " + std::to_string(options.tensor_parallel) +
                                       " needs as many GPUs, and " + std::to_string(visible) +
                                       (visible == 1 ? " is" : " are") + " visible (" +
                                       kernels::visible_devices_text() + "; a process sees only one MIG instance)");
}

// Loads the whole target or, with --tensor-parallel, only this process's shard.
void load_target(const PairOptions& options, const std::shared_ptr<const DirectoryLock>& hold, LoadedPair& pair) {
  if (options.tensor_parallel == 1) {
    pair.target = keep(
        model::load_for_decoding(pair.target_dir, pair.device, pair.dtype, model::Role::kTarget, options.device.exact),
        hold);
    return;
  }
  pair.ranks = std::make_unique<TensorRanks>(TensorRankOptions{.ranks = options.tensor_parallel,
                                                               .target = pair.target_dir,
                                                               .device = options.device.device,
                                                               .dtype = pair.dtype,
                                                               .threads = options.device.threads,
                                                               .exact = options.device.exact,
                                                               .command = options.rank_command,
                                                               .on_lost = options.on_rank_lost});
  pair.target = keep(pair.ranks->load(), hold);
  pair.device = pair.ranks->device();
}

// Loads a draft for the target. An EAGLE-3 head needs the target's whole embedding, of which a tensor-parallel rank
// holds only a shard, so the embedding is then loaded separately.
decode::DraftPtr read_draft(const LoadedPair& pair, const fs::path& directory, const decode::DraftConfig& config,
                            at::ScalarType dtype) {
  if (!pair.ranks || !config.head) return decode::load_draft(directory, *pair.target, pair.device, dtype);
  const model::Decoder embedding = model::load_embedding(pair.target_dir, pair.device, pair.target->config.dtype);
  return decode::load_draft(directory, embedding, pair.device, dtype);
}

// Adds the tokenizer's eos_token to the tokens that end an answer. Fine-tuned models often name their end-of-turn token
// only in the tokenizer, while config.json still names the base model's end-of-text token. Returns oddities of the
// tokenizer that users should know, one line each.
std::vector<std::string> tokenizer_notes(const text::Tokenizer& tokenizer, model::DecoderConfig& config) {
  std::vector<std::string> notes;
  const int32_t id = tokenizer.eos_id();
  if (model::add_eos_id(config, id))
    notes.push_back(
        "answers end with " + tokenizer.eos_token() + " (token " + std::to_string(id) +
        "), too: it is the tokenizer's eos_token, which config.json and generation_config.json do not name");
  if (!tokenizer.streams())
    notes.push_back(
        "nothing can be streamed and no stop text ends an answer early: by the decoder of tokenizer.json each token "
        "may change the text before it, so an answer's text is known when its last token is");
  return notes;
}

void check_memory(const PairOptions& options, const model::MemoryPlan& plan) {
  try {
    model::check_memory(plan);
  } catch (const Error& e) {
    if (options.cache_bytes == 0) throw;
    throw Error(e.kind(), std::string(e.what()) + ", or a smaller --cache");
  }
}

LoadedPair load(const PairOptions& options) {
  validate(options.device);
  LoadedPair pair;
  const ResolvedModel target = resolve_model(options.target);
  pair.target_dir = target.directory;
  pair.package_digest = target.package_digest;
  if (!target.stale_reason.empty()) {
    pair.binding = BindingState::kStale;
    pair.warning = target.stale_reason;
    pair.draft_dir = target.draft;
    if (!options.allow_stale) return pair;
  }
  const Draft draft = find_draft(options, target);
  if (!accept_draft(draft, options.allow_stale, pair)) return pair;
  if (pair.draft_dir.empty() && options.drafts_wanted > 0)
    throw Error(ErrorKind::kUsage, "--k " + std::to_string(options.drafts_wanted) + " needs --draft or --suffix");

  pair.device = model::resolve_device(options.device.device);
  if (options.tensor_parallel > 1 && pair.device.is_cuda()) check_gpus(options);
  const model::DecoderConfig config = model::load_decoder_config(pair.target_dir);
  // Throws if the target cannot be divided among this many processes.
  if (options.tensor_parallel > 1) model::shard_config(config, 0, options.tensor_parallel);
  pair.dtype = model::resolve_decoding_dtype(options.device.dtype, config, pair.device, options.tensor_parallel);
  std::optional<decode::DraftConfig> draft_config;
  at::ScalarType draft_dtype = pair.dtype;
  bool head = false;  // the draft is an EAGLE-3 head, which is never quantised
  if (!pair.draft_dir.empty()) {
    draft_config = draft_config_for(config, pair.draft_dir);
    head = draft_config->head.has_value();
    draft_dtype = decode::resolve_draft_dtype(options.device.dtype_of_draft(), *draft_config, pair.device, pair.dtype);
  }
  const model::MemoryRequest request{.target = config,
                                     .target_dtype = pair.dtype,
                                     .draft = draft_config ? &draft_config->config : nullptr,
                                     .draft_dtype = draft_dtype,
                                     .sequences = options.sequences,
                                     .tokens_per_sequence = planned_tokens(options, config),
                                     .device = pair.device,
                                     .head = head ? &*draft_config->head : nullptr,
                                     .ranks = options.tensor_parallel};
  if (options.may_give_up) {
    const model::FittedMemory fit =
        model::fit_memory(request, options.cache_bytes, options.device.draft_dtype.empty() && !head);
    pair.plan = fit.plan;
    pair.given_up = fit.given_up;
    draft_dtype = fit.draft_dtype;
    if (!fit.draft) draft_config.reset();
  } else {
    pair.plan = model::plan_memory(request);
  }
  if (options.on_plan) options.on_plan(pair.plan);
  if (draft_config && !head) model::warn_of_large_draft(draft_config->config, config);
  check_memory(options, pair.plan);

  if (options.device.threads > 0) at::set_num_threads(options.device.threads);
  pair.tokenizer = std::make_unique<text::Tokenizer>(pair.target_dir);
  if (options.chat) pair.chat_template = text::ChatTemplate::load(pair.target_dir);
  pair.config = config;
  pair.notes = tokenizer_notes(*pair.tokenizer, pair.config);
  if (options.progress) options.progress({"loading the models", 0, 0, "", options.target});
  load_target(options, target.hold, pair);
  if (draft_config) pair.draft = keep(read_draft(pair, pair.draft_dir, *draft_config, draft_dtype), draft.hold);
  require_unchanged(target.verified);
  require_unchanged(draft.verified);
  if (options.progress) options.progress({});
  return pair;
}

}  // namespace

LoadedPair load_pair(const PairOptions& options) {
  return model::with_device_errors([&] { return load(options); });
}

std::unique_ptr<decode::CausalModel> LoadedPair::make_target_runner(int64_t cache_bytes) const {
  return decode::with_rounds(ranks ? ranks->make_runner(target, cache_bytes)
                                   : decode::make_model_runner(target, cache_bytes));
}

std::string LoadedPair::arithmetic() const {
  const at::ScalarType stored = config.quantisation.method == model::Quantisation::Method::kGguf
                                    ? at::kFloat  // a pass over blocks sums in fp32, and its bits do not depend on rows
                                    : config.dtype;
  return model::dtype_flag(dtype == model::kAsStored ? stored : dtype);
}

int32_t tokenizers_end(const fs::path& directory) { return text::Tokenizer(directory).eos_id(); }

LoadedDraft load_draft(const LoadedPair& pair, const PairOptions& options) {
  const Draft found = find_draft(options, {});
  LoadedDraft loaded{found.directory, {}, "", 0};
  const BindingCheck binding = found.stale_reason.empty() ? check(pair.target_dir, found)
                                                          : BindingCheck{BindingState::kStale, found.stale_reason};
  if (binding.state == BindingState::kStale && !options.allow_stale)
    throw Error(ErrorKind::kModel, binding.reason + ": give a draft made for this target");
  if (binding.state == BindingState::kStale) loaded.warning = binding.reason;
  if (binding.state == BindingState::kUnbound) loaded.warning = unbound(loaded.directory);
  const decode::DraftConfig config = draft_config_for(pair.config, loaded.directory);
  const at::ScalarType dtype =
      decode::resolve_draft_dtype(options.device.dtype_of_draft(), config, pair.device, pair.dtype);
  model::MemoryRequest request{.target = pair.config,
                               .target_dtype = pair.dtype,
                               .draft = &config.config,
                               .draft_dtype = dtype,
                               .sequences = options.sequences,
                               .tokens_per_sequence = planned_tokens(options, pair.config),
                               .device = pair.device,
                               .head = config.head ? &*config.head : nullptr,
                               .ranks = pair.ranks ? pair.ranks->count() : 1};
  model::MemoryPlan plan = model::plan_memory(request);
  request.draft = nullptr;
  plan.workspace_bytes -= model::plan_memory(request).workspace_bytes;
  plan.target_bytes = plan.target_cache_bytes = 0;  // the target's memory is in use already
  if (options.on_plan) options.on_plan(plan);
  model::check_memory(plan);
  loaded.cache_bytes = plan.draft_cache_bytes;
  loaded.draft = keep(read_draft(pair, loaded.directory, config, dtype), found.hold);
  require_unchanged(found.verified);
  return loaded;
}

}  // namespace specdec::deploy
