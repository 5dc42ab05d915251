// Creates the draft that training starts from: layers of the target, an existing model or head, a configuration with
// random weights, or a new head.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"
#include "distill/gradient/trained_draft.h"
#include "distill/settings/options.h"
#include "distill/train/evaluate.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

struct DraftInit {
  model::Decoder decoder;  // empty if the draft is a head
  Json search;  // prune: {"kept": [..], "acceptance", "trials": [{"layers": [..], "acceptance"}, ..]}; else null
  std::unique_ptr<HeadDraft> head = nullptr;

  TrainedDraft draft() { return head ? TrainedDraft(*head) : TrainedDraft(decoder); }
};

// Returns the target with only `layers` (ascending), renumbered. pick_layers shares the tensors, keep_layers copies
// them.
model::Decoder pick_layers(const model::Decoder& target, const std::vector<int64_t>& layers);
model::Decoder keep_layers(const model::Decoder& target, const std::vector<int64_t>& layers);

// Returns rows spread over the training set with about 4,096 tokens, or fewer if their logits would be more than 128 M
// values. The initial draft is never chosen by held-out rows.
std::vector<TokenRow> probe_rows(const std::vector<TokenRow>& train, int64_t vocab);

// The limit of what the choice of layers may cost, in passes of one candidate over one row of the probe. If the limit
// is too low for all rows and candidates, the number of rows is reduced first, to at least four. Then the number of
// candidates per round is reduced, to at least two; they are spread evenly over the layers.
struct LayerSearch {
  int64_t passes = INT64_MAX;
  EvaluationStep step = {};  // called repeatedly with the share of the work that is done
  // These are for a run with a time limit: the most rows of the probe, the padded tokens of a pass, and whether the
  // time is over. When it is over, the current round takes the best candidate so far, and each later round takes its
  // last candidate, as for ties, without measuring.
  int64_t rows = INT64_MAX, batch_tokens = INT64_MAX;
  std::function<bool()> is_late = {};
};

struct ChosenLayers {
  std::vector<int64_t> layers;  // ascending
  Json record;                  // {"trials", "kept", "acceptance", "probe_rows"}
};
// Chooses `keep` layers by acceptance, measured teacher-forced on `probe`. The search starts from the whole target and
// repeatedly removes the layer whose removal costs least. The first and the last layer stay while keep >= 2; among
// equals the later layer is removed. If the target is at least four times as deep as the draft, the search starts from
// no layers and repeatedly adds the layer that gains most; among equals the earlier layer is added. Throws
// Error(kUsage) unless 1 <= keep <= layers.
ChosenLayers choose_layers(const std::shared_ptr<const model::Decoder>& target, int64_t keep,
                           std::vector<TokenRow> probe, double temperature, const LayerSearch& limits = {});

struct DraftInitOptions {
  DraftSpec spec;
  std::string dtype = "auto";
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  double temperature = 1;
  LayerSearch search = {};
  int64_t draft_vocab = 0;  // ids of a new head, 0 = all; other drafts have all ids
  int64_t ttt_steps = 5;    // of a head
  double ttt_decay = 0.8;
};
// Makes the initial draft. `target` may be null unless spec.kind is "prune", which also takes its probe rows from
// `train`, or the draft is a head, which chooses its ids by the tokens of `train`. Throws Error(kUsage | kConfig |
// kModel).
DraftInit init_draft(const DraftInitOptions& options, const std::shared_ptr<const model::Decoder>& target,
                     const std::vector<TokenRow>& train);

}  // namespace specdec::distill
