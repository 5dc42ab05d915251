#include "distill/run/heads.h"

#include <algorithm>

#include "base/error.h"
#include "distill/gradient/eagle_gradient.h"
#include "engine/weights/eagle_head.h"

namespace specdec::distill {

namespace {

namespace fs = std::filesystem;

HeadKind::Plan plan_of_eagle(const model::EagleConfig& config) { return {config.layer, model::num_parameters(config)}; }

HeadKind::Plan plan_new_eagle(const model::DecoderConfig& target, int64_t draft_vocab) {
  model::EagleConfig config = model::eagle_config_for(target);
  if (draft_vocab > 0) config.draft_vocab_size = draft_vocab;
  return plan_of_eagle(config);
}

HeadKind::Plan plan_eagle_in(const fs::path& directory, const model::DecoderConfig& target) {
  return plan_of_eagle(model::load_eagle_config(directory, target));
}

std::unique_ptr<HeadDraft> make_eagle(const HeadOptions& o, const HeadKind::Target& target, std::vector<int32_t> ids) {
  return std::make_unique<EagleDraft>(model::new_eagle_head(*target, std::move(ids), o.seed, o.dtype), target,
                                      o.ttt_steps, o.ttt_decay);
}

std::unique_ptr<HeadDraft> read_eagle(const HeadOptions& o, const HeadKind::Target& target, const fs::path& directory) {
  return std::make_unique<EagleDraft>(model::load_eagle_head(directory, *target, o.device, o.dtype), target,
                                      o.ttt_steps, o.ttt_decay);
}

std::unique_ptr<HeadDraft> make_eagle_like(const Json& shape, const HeadKind::Target& target,
                                           const std::string& where) {
  return eagle_like(shape, target, where);
}

constexpr HeadKind kHeads[] = {
    {DraftKind::kEagle3, plan_new_eagle, plan_eagle_in, make_eagle, read_eagle, make_eagle_like},
};

}  // namespace

const HeadKind* head_kind(const DraftSpec& spec) {
  const NewHead* const made = new_head(spec);
  if (!made && (spec.kind != "model" || !fs::exists(fs::path(spec.argument) / "config.json"))) return nullptr;
  const DraftKind kind = made ? made->kind : kind_of_draft(fs::path(spec.argument));
  const auto* const found = std::ranges::find(kHeads, kind, &HeadKind::kind);
  if (found != std::end(kHeads)) return found;
  if (made) throw Error(ErrorKind::kInternal, std::string("distill does not train ") + name_of(kind));
  return nullptr;
}

}  // namespace specdec::distill
