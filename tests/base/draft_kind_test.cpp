#include "base/schema/draft_kind.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace specdec {
namespace {

const std::set<std::string> kModel = {"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight"},
                            kThird = {"fc.weight", "midlayer.hidden_norm.weight", "lm_head.weight", "d2t"},
                            kFirst = {"fc.weight", "layers.0.self_attn.q_proj.weight"};

// The architecture names are those of published drafts. Original EAGLE heads call themselves LlamaForCausalLM.
TEST(DraftKind, IsToldByConfigAndTensors) {
  const auto named = [](const char* architecture) { return Json{{"architectures", {architecture}}}; };
  const struct {
    Json config;
    std::set<std::string> tensors;
    DraftKind kind;
  } cases[] = {
      {named("LlamaForCausalLM"), kModel, DraftKind::kModel},
      {named("LlamaForCausalLM"), {}, DraftKind::kModel},
      {named("LlamaForCausalLMEagle3"), kThird, DraftKind::kEagle3},
      {named("LlamaForCausalLMEagle3"), {}, DraftKind::kEagle3},
      {named("Eagle3Qwen3ForCausalLM"), {}, DraftKind::kEagle3},
      {named("LlamaForCausalLM"), kThird, DraftKind::kEagle3},
      {named("LlamaForCausalLM"), {"fc.weight", "layers.0.hidden_norm.weight"}, DraftKind::kEagle3},
      {named("LlamaForCausalLM"), kFirst, DraftKind::kEagle1},
      {named("LlamaForCausalLMEagle"), {}, DraftKind::kEagle1},
      {named("EagleLlamaForCausalLM"), {}, DraftKind::kEagle1},
      {named("PEagleDraftModel"), kThird, DraftKind::kParallelEagle},
      {named("LlamaForCausalLMEagle3"), {"mask_hidden", "fc.weight"}, DraftKind::kParallelEagle},
      {named("Qwen3_5MTPDraftModel"), {}, DraftKind::kMtp},
      {named("Qwen3ForCausalLM"), {"mtp.fc.weight"}, DraftKind::kMtp},
      {named("Qwen3ForCausalLM"), {"mtp.fc.weight", "model.embed_tokens.weight"}, DraftKind::kModel},
      {named("DSparkDraftModel"), {}, DraftKind::kBlock},
      {named("DFlashDraftModel"), {}, DraftKind::kBlock},
      {{{"medusa_num_heads", 4}}, {}, DraftKind::kMedusa},
      {{{"model_type", "mlp_speculator"}}, {}, DraftKind::kMlp},
      {{{"speculators_model_type", "eagle3"}}, {}, DraftKind::kEagle3},
      {{{"speculators_model_type", "peagle"}}, {}, DraftKind::kParallelEagle},
      {{{"speculators_model_type", "dflash"}}, {}, DraftKind::kBlock},
      {Json::array(), {}, DraftKind::kModel},
      {{{"architectures", {3}}}, {}, DraftKind::kModel},
  };
  for (const auto& c : cases)
    EXPECT_EQ(kind_of_draft(c.config, c.tensors), c.kind) << c.config << " is taken for " << name_of(c.kind);
}

}  // namespace
}  // namespace specdec
