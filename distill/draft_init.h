// Creates the draft that training starts from: layers of the target, an existing model, or a configuration with random
// weights.
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

// Returns the target with only `layers` (ascending), renumbered. pick_layers shares the tensors, keep_layers copies
// them.
model::Decoder pick_layers(const model::Decoder& target, const std::vector<int64_t>& layers);
model::Decoder keep_layers(const model::Decoder& target, const std::vector<int64_t>& layers);

// Returns about 4,096 tokens of rows spread over the training set, fewer where their logits would be more than 128 M
// values. Choices at this stage never look at held-out rows.
std::vector<TokenRow> probe_rows(const std::vector<TokenRow>& train, int64_t vocab);

// Limits what the choice of layers may cost, in passes of one candidate over one row of the probe. Each round measures
// at least two candidates on four rows each: rows are reduced first, then candidates, which are spread evenly over the
// layers.
struct LayerSearch {
  int64_t passes = INT64_MAX;
  EvaluationStep step = {};  // called between stretches of work with the share that is done
};

// Chooses the `keep` layers with the best acceptance, measured teacher-forced on `probe`. It starts from the whole
// target and repeatedly removes the layer whose removal costs least (first and last stay while keep >= 2; among equals
// the later one is removed). If the target is at least four times as deep as the draft, it repeatedly adds the layer
// that gains most (among equals the earlier one). Throws Error(kUsage) unless 1 <= keep <= layers.
struct ChosenLayers {
  std::vector<int64_t> layers;  // ascending
  Json record;                  // {"trials", "kept", "acceptance", "probe_rows"}
};
ChosenLayers choose_layers(const std::shared_ptr<const model::Decoder>& target, int64_t keep,
                           std::vector<TokenRow> probe, double temperature, const LayerSearch& limits = {});

struct DraftInitOptions {
  DraftSpec spec;
  std::string dtype = "auto";
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  double temperature = 1;
  LayerSearch search = {};
};
// `target` may be null unless the kind is prune; prune takes its probe from `train`. Throws Error(kUsage | kConfig |
// kModel).
DraftInit init_draft(const DraftInitOptions& options, const std::shared_ptr<const model::Decoder>& target,
                     const std::vector<TokenRow>& train);

}  // namespace specdec::distill
