#include "deploy/package/lint_rules.h"

#include "base/version.h"

namespace specdec::deploy {

const std::vector<LintRule>& lint_rules() {
  static const std::vector<LintRule> kRules = {
      {"vocab-size", "vocab_size equals the target's, and padding rows take no probability"},
      {"tokenizer", "the tokenizer is the target's, byte for byte"},
      {"vocab-map", "d2t and t2d describe the same ids, int64 and bool, special tokens kept"},
      {"tensors", "every required tensor exists in its shape, none is unknown, the head looks trained"},
      {"not-finite", "no NaN, no infinity"},
      {"embedding", "embed_tokens is absent or the target's"},
      {"fc-input", "fc takes as many columns as layers are tapped"},
      {"norm-before-residual", "norm_before_residual is written and false"},
      {"rope", "rope is written in both generations of keys, with equal values"},
      {"aux-layers", "both engines tap the layers that were trained on"},
      {"context", "max_position_embeddings covers the target's"},
      {"layers", "an EAGLE-3 head has one layer"},
      {"target-support", "every engine hands out the target's hidden states, which an EAGLE-3 head reads"},
      {"measured", "it was loaded again and measured, with the acceptance that the trainer reported"},
      {"gate", "the gate passed, and the schedule drafts only where a gain was measured"},
      {"nulls", "no null where an engine expects a number"},
      {"binding", "the target it was made for is recorded, and is this one"},
      {"format", "some engine loads this kind of draft"},
      {"dtype-keys", "torch_dtype and dtype are both written"},
      {"architectures", "architectures is written"},
      {"remote-code", "no remote code is asked for"}};
  return kRules;
}

Json sarif(const std::vector<Finding>& findings) {
  Json rules = Json::array(), results = Json::array();
  for (const LintRule& rule : lint_rules())
    rules.push_back({{"id", rule.id}, {"shortDescription", {{"text", rule.text}}}});
  for (const Finding& f : findings)
    results.push_back({{"ruleId", f.rule},
                       {"level", f.fatal ? "error" : "warning"},
                       {"message", {{"text", f.text}}},
                       {"locations", {{{"physicalLocation", {{"artifactLocation", {{"uri", f.file}}}}}}}}});
  const Json driver = {{"name", "specdec package lint"}, {"semanticVersion", kToolVersion}, {"rules", rules}};
  return {{"$schema", "https://json.schemastore.org/sarif-2.1.0.json"},
          {"version", "2.1.0"},
          {"runs", {{{"tool", {{"driver", driver}}}, {"results", results}}}}};
}

}  // namespace specdec::deploy
