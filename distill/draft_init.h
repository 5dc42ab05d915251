// Where a draft starts: layers of the target, an existing model, or a configuration with random weights.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/schema/shard_index.h"
#include "distill/options.h"
#include "engine/model/weights.h"

namespace specdec::distill {

struct DraftInit {
  model::Decoder decoder;
  Json search;  // prune: {"kept": [..], "acceptance", "trials": [{"layers": [..], "acceptance"}, ..]}; else null
};

// A copy of the target with only `layers` (ascending), renumbered.
model::Decoder keep_layers(const model::Decoder& target, const std::vector<int64_t>& layers);

// Which `keep` layers stay, by acceptance measured teacher-forced on `probe`. From the whole target, again and again the layer
// goes whose removal costs least (first and last stay while keep >= 2; of equals the later goes); of targets at least four times
// as deep as the draft, again and again the layer is taken that adds most (of equals the earlier).
// `search` gets the record. Throws Error(kUsage) unless 1 <= keep <= layers.
std::vector<int64_t> choose_layers(const model::Decoder& target, int64_t keep, const std::vector<TokenRow>& probe,
                                   double temperature, Json& search);

struct DraftInitOptions {
  DraftSpec spec;
  std::string dtype = "auto";
  at::Device device = at::kCPU;
  uint64_t seed = 0;
  double temperature = 1;
};
// `target` may be null unless the kind is prune; `train` gives prune its probe. Throws Error(kUsage | kConfig | kModel).
DraftInit init_draft(const DraftInitOptions& options, const model::Decoder* target, const std::vector<TokenRow>& train);

}  // namespace specdec::distill
