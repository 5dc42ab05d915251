// The table of the kinds of heads that distill trains. A head is a draft that reads the target's hidden states; all
// other drafts are decoders.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/draft_kind.h"
#include "distill/gradient/head_draft.h"
#include "distill/settings/options.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

// Options for making a new head, or reading one from a directory, for training.
struct HeadOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  int64_t ttt_steps = 5;
  double ttt_decay = 0.8;
};

struct HeadKind {
  // The configuration and size of a head, known before its weights are made or loaded.
  struct Plan {
    model::DecoderConfig layers;
    int64_t parameters = 0;
  };
  using Target = std::shared_ptr<const model::Decoder>;

  DraftKind kind;
  Plan (*plan_new)(const model::DecoderConfig& target, int64_t draft_vocab);  // draft_vocab 0 = the target's vocabulary
  Plan (*plan_of)(const std::filesystem::path& directory, const model::DecoderConfig& target);
  // Makes a new head whose vocabulary is `ids`.
  std::unique_ptr<HeadDraft> (*make)(const HeadOptions& options, const Target& target, std::vector<int32_t> ids);
  std::unique_ptr<HeadDraft> (*read)(const HeadOptions& options, const Target& target,
                                     const std::filesystem::path& directory);
  // Makes a head with uninitialised weights, of the shapes that HeadDraft::shape() returned on another rank.
  std::unique_ptr<HeadDraft> (*like)(const Json& shape, const Target& target, const std::string& where);
};

// Returns the kind of head that `spec` names, as a new head or as a directory (model:DIR); null if the draft is a
// decoder.
const HeadKind* head_kind(const DraftSpec& spec);

}  // namespace specdec::distill
