// The kinds of heads that distill trains, a row each. Heads read the target's hidden states; other drafts are decoders.
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

// How a head is made or read for training.
struct HeadOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  int64_t ttt_steps = 5;
  double ttt_decay = 0.8;
};

struct HeadKind {
  // What is known of a head before its weights are there.
  struct Plan {
    model::DecoderConfig layers;
    int64_t parameters = 0;
  };
  using Target = std::shared_ptr<const model::Decoder>;

  DraftKind kind;
  Plan (*plan_new)(const model::DecoderConfig& target, int64_t draft_vocab);  // draft_vocab 0: all ids
  Plan (*plan_of)(const std::filesystem::path& directory, const model::DecoderConfig& target);
  // A new head proposes the tokens `ids`.
  std::unique_ptr<HeadDraft> (*make)(const HeadOptions& options, const Target& target, std::vector<int32_t> ids);
  std::unique_ptr<HeadDraft> (*read)(const HeadOptions& options, const Target& target,
                                     const std::filesystem::path& directory);
  // Makes a head without values, with the shapes that HeadDraft::shape() of another rank gave.
  std::unique_ptr<HeadDraft> (*like)(const Json& shape, const Target& target, const std::string& where);
};

// Returns the kind of head that the draft is, whether it is new or in the directory that model: names; null if the
// draft is a decoder.
const HeadKind* head_kind(const DraftSpec& spec);

}  // namespace specdec::distill
