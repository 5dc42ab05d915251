// Where a draft starts: layers of the target, an existing model, or a configuration with random weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"
#include "distill/evaluate.h"
#include "distill/options.h"
#include "engine/model/weights.h"

namespace specdec::distill {

struct DraftInit {
  model::Decoder decoder;
  Json search;  // prune: {"kept": [..], "acceptance", "trials": [{"layers": [..], "acceptance"}, ..]}; else null
};

// The target with only `layers` (ascending), renumbered: the same tensors, or copies of them.
model::Decoder pick_layers(const model::Decoder& target, const std::vector<int64_t>& layers);
model::Decoder keep_layers(const model::Decoder& target, const std::vector<int64_t>& layers);

// About 4,096 tokens of rows spread over the training set, fewer where their logits would be more than 128 M values:
// held-out rows are not touched by any choice of this stage.
std::vector<TokenRow> probe_rows(const std::vector<TokenRow>& train, int64_t vocab);

// What the choice of layers may cost: passes of one candidate over one row of the probe. Each round measures at least
// two candidates, each on four rows: then the rows are fewer, and after them the candidates, which are spread evenly
// over the layers.
struct LayerSearch {
  int64_t passes = INT64_MAX;
  EvaluationStep step = {};  // between stretches of work, with the share that is done
};

// Which `keep` layers stay, by acceptance measured teacher-forced on `probe`. From the whole target, again and again
// the layer goes whose removal costs least (first and last stay while keep >= 2; of equals the later goes); of targets
// at least four times as deep as the draft, again and again the layer is taken that adds most (of equals the earlier).
// `search` gets the record. Throws Error(kUsage) unless 1 <= keep <= layers.
std::vector<int64_t> choose_layers(const std::shared_ptr<const model::Decoder>& target, int64_t keep,
                                   std::vector<TokenRow> probe, double temperature, Json& search,
                                   const LayerSearch& limits = {});

struct DraftInitOptions {
  DraftSpec spec;
  std::string dtype = "auto";
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  double temperature = 1;
  LayerSearch search = {};
};
// `target` may be null unless the kind is prune; `train` gives prune its probe. Throws Error(kUsage | kConfig |
// kModel).
DraftInit init_draft(const DraftInitOptions& options, const std::shared_ptr<const model::Decoder>& target,
                     const std::vector<TokenRow>& train);

}  // namespace specdec::distill
