#include "deploy/generate/model_argument.h"

#include <ATen/Parallel.h>

#include <cstdlib>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/schema/package_manifest.h"

namespace specdec::deploy {

namespace {

// The draft directory and how it is bound. A package's manifest binds the draft inside it.
struct Draft {
  fs::path directory;
  std::optional<Fingerprint> made_for;
};
Draft find_draft(const PairOptions& options, const std::string& target_package) {
  if (options.draft.empty() && (target_package.empty() || !options.speculate)) return {};
  const std::string argument = options.draft.empty() ? options.target : options.draft;
  const ResolvedModel model = resolve_model(argument);
  if (model.draft.empty()) return {model.directory, std::nullopt};
  return {model.draft, locate_package(argument)->manifest.target};
}

BindingCheck check(const fs::path& target, const Draft& draft) {
  if (!draft.made_for) return check_binding(target, draft.directory);
  const Fingerprint found = fingerprint_model(target);
  if (found == *draft.made_for) return {BindingState::kBound, ""};
  return {BindingState::kStale, draft.directory.string() + " was packaged for another target: " + differing_tiers(*draft.made_for, found) +
                                    " differ (made for " + draft.made_for->id.substr(0, 12) + ", " + target.string() + " is " +
                                    found.id.substr(0, 12) + ")"};
}

}  // namespace

LoadedPair load_pair(const PairOptions& options) {
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
  const Draft draft = find_draft(options, target.package_digest);
  pair.draft_dir = draft.directory;
  pair.binding = BindingState::kBound;
  if (!pair.draft_dir.empty()) {
    const BindingCheck binding = check(pair.target_dir, draft);
    pair.binding = binding.state;
    if (binding.state == BindingState::kStale) {
      pair.warning = binding.reason;
      if (!options.allow_stale) return pair;
    } else if (binding.state == BindingState::kUnbound) {
      pair.warning = pair.draft_dir.string() + " is not bound to a target (no specdec.json): run specdec validate to bind the pair";
    }
  }

  pair.device = model::resolve_device(options.device.device);
  const model::DecoderConfig config = model::load_decoder_config(pair.target_dir);
  pair.dtype = model::resolve_dtype(options.device.dtype, config);
  std::optional<model::DecoderConfig> draft_config;
  at::ScalarType draft_dtype = pair.dtype;
  if (!pair.draft_dir.empty()) {
    draft_config = model::load_decoder_config(pair.draft_dir);
    draft_dtype = model::resolve_dtype(options.device.dtype_of_draft(), *draft_config);
    if (draft_config->vocab_size != config.vocab_size)
      throw Error(ErrorKind::kModel, (pair.draft_dir / "config.json").string() + ": vocab_size: expected the target's " +
                                         std::to_string(config.vocab_size) + ", found " + std::to_string(draft_config->vocab_size));
  }
  const int64_t tokens = options.tokens_per_sequence > 0 ? std::min(options.tokens_per_sequence, config.max_position) : config.max_position;
  pair.plan = model::plan_memory(config, pair.dtype, draft_config ? &*draft_config : nullptr, draft_dtype, options.sequences, tokens, pair.device);
  if (options.on_plan) options.on_plan(pair.plan);
  model::check_memory(pair.plan);

  if (options.device.threads > 0) at::set_num_threads(options.device.threads);
  pair.tokenizer = std::make_unique<text::Tokenizer>(pair.target_dir);
  if (options.chat) pair.chat_template = text::ChatTemplate::load(pair.target_dir);
  pair.target = model::load_for_decoding(pair.target_dir, pair.device, pair.dtype, model::Role::kTarget);
  if (draft_config) pair.draft = model::load_for_decoding(pair.draft_dir, pair.device, draft_dtype, model::Role::kDraft);
  return pair;
}

}  // namespace specdec::deploy
