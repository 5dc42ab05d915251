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
  model::Decoder decoder;  // unused if the draft is a head
  Json search;  // prune: {"kept": [..], "acceptance", "trials": [{"layers": [..], "acceptance"}, ..]}; else null
  std::unique_ptr<HeadDraft> head = nullptr;

  TrainedDraft draft() { return head ? TrainedDraft(*head) : TrainedDraft(decoder); }
};

// Returns the target with only `layers` (ascending), renumbered. pick_layers() shares the target's tensors,
// keep_layers() copies them.
model::Decoder pick_layers(const model::Decoder& target, const std::vector<int64_t>& layers);
model::Decoder keep_layers(const model::Decoder& target, const std::vector<int64_t>& layers);

// Returns rows spread over the training set, with about 4,096 tokens together, or fewer if their logits would be more
// than 128 M values. The layer search measures on these rows. They are training rows, because held-out rows must not
// influence the choice of the initial draft.
std::vector<TokenRow> probe_rows(const std::vector<TokenRow>& train, int64_t vocab);

// Limits the cost of choosing layers. A candidate is a set of layers; each round of the search removes or adds one
// layer. `passes` is the largest total number of forward passes, where a pass runs one candidate over one probe row. If
// `passes` is too low for all rows and candidates, fewer rows are used (at least four), then fewer candidates per round
// (at least two, spread evenly over the layers).
struct LayerSearch {
  int64_t passes = INT64_MAX;
  EvaluationStep step = {};  // called repeatedly with the fraction of the work done so far
  // For a run with a time limit: the largest number of probe rows, the padded tokens per pass, and a function that
  // returns whether the time is over. When the time is over, the search keeps the best layers measured so far in the
  // current round, and chooses all further layers without measuring.
  int64_t rows = INT64_MAX, batch_tokens = INT64_MAX;
  std::function<bool()> is_late = {};
};

struct ChosenLayers {
  std::vector<int64_t> layers;  // ascending
  Json record;                  // of the search: {"trials", "kept", "acceptance", "probe_rows"}
};
// Chooses `keep` layers by acceptance, measured teacher-forced on `probe`. The search starts from the whole target and
// repeatedly removes the layer whose removal costs least acceptance; among equals, the later layer. With keep >= 2 the
// first and the last layer are never removed.
// If the target is at least four times as deep as the draft, the search instead starts from no layers and repeatedly
// adds the layer that raises acceptance most; among equals, the earlier layer. Throws Error(kUsage) unless 1 <= keep <=
// layers.
ChosenLayers choose_layers(const std::shared_ptr<const model::Decoder>& target, int64_t keep,
                           std::vector<TokenRow> probe, double temperature, const LayerSearch& limits = {});

struct DraftInitOptions {
  DraftSpec spec;
  std::string dtype = "auto";
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  double temperature = 1;
  LayerSearch search = {};
  int64_t draft_vocab = 0;  // vocabulary size of a new head, 0 = the target's; other drafts always have the target's
  int64_t ttt_steps = 5;    // only for a head, see DistillOptions::ttt_steps
  double ttt_decay = 0.8;
};
// Makes the initial draft. `target` may be null unless spec.kind is "prune" or the draft is a head. "prune" takes its
// probe rows from `train`; a new head takes the commonest tokens of `train` as its vocabulary. Throws Error(kUsage |
// kConfig | kModel).
DraftInit init_draft(const DraftInitOptions& options, const std::shared_ptr<const model::Decoder>& target,
                     const std::vector<TokenRow>& train);

}  // namespace specdec::distill
