// A draft of any kind, loaded for decoding. Each kind is a class in its own file (decoder_draft.cpp, eagle_draft.cpp)
// and a row of the table in draft.cpp. Callers do not need to know which kind a draft is.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "engine/config/config.h"
#include "engine/decode/runners/causal_model.h"
#include "engine/forward/forward.h"
#include "engine/forward/memory_plan.h"
#include "engine/weights/eagle_head.h"
#include "engine/weights/weights.h"

namespace specdec::decode {

// Computes a draft's distributions at positions of existing texts (teacher forcing), alongside the target's passes.
class DraftScorer {
 public:
  // A pass of the target over some of the texts.
  struct Pass {
    struct Position {
      size_t text;       // index of the text
      int64_t position;  // position of the token after which a distribution is wanted
      int64_t logit;     // the position's row in the logits of the target's pass
    };
    int64_t begin = 0;                           // position at which the pass begins, the same in every text
    std::span<const size_t> texts;               // indices of the texts in this pass
    std::span<const model::SequencePart> parts;  // the parts of the target's pass, one per text
    std::span<const Position> wanted;
  };
  virtual ~DraftScorer() = default;
  // Returns the first position of a text after which this kind of draft has a distribution.
  virtual int64_t first_position() const { return 0; }
  // Starts again with new texts of these lengths in tokens.
  virtual void begin(std::span<const int64_t> lengths) = 0;
  // Returns the observer for the hidden states of the target's next pass, or an empty observer if the draft needs no
  // hidden states. The observer is valid until logits() is called.
  virtual model::HiddenObserver observer() { return {}; }
  // Returns the logits [wanted, V], on the draft's device and in its dtype or in fp32. Successive passes over a text
  // must be contiguous.
  virtual at::Tensor logits(const Pass& pass) = 0;
};

class Draft {
 public:
  virtual ~Draft() = default;
  // Returns the decoder's configuration. For an EAGLE-3 head, returns the configuration of its layer, with the head's
  // vocabulary and number of cached layers.
  virtual const model::DecoderConfig& config() const = 0;
  virtual at::ScalarType dtype() const = 0;  // the dtype given to load_draft()
  virtual std::optional<model::HeadMemory> head_memory() const { return std::nullopt; }
  // Returns the runner for a target; `target` runs the target and must outlive it. cache_bytes is documented at
  // make_model_runner().
  virtual std::unique_ptr<CausalModel> make_runner(CausalModel& target, int64_t cache_bytes = 0) const = 0;
  // The draft must outlive the scorer.
  virtual std::unique_ptr<DraftScorer> make_scorer() const = 0;
};
using DraftPtr = std::shared_ptr<const Draft>;

DraftPtr make_draft(std::shared_ptr<const model::Decoder> decoder);
DraftPtr make_draft(std::shared_ptr<const model::EagleHead> head);
// Returns null if `draft` is null.
std::unique_ptr<CausalModel> make_draft_runner(const DraftPtr& draft, CausalModel& target, int64_t cache_bytes = 0);

// The properties of a draft that are known before its weights are loaded.
struct DraftConfig {
  model::DecoderConfig config;            // see Draft::config()
  std::optional<model::HeadMemory> head;  // see Draft::head_memory()
};
// Throws Error(kModel) if the files do not load, or contain a kind of draft that specdec does not support.
DraftConfig load_draft_config(const std::filesystem::path& directory, const model::DecoderConfig& target);

// Resolves --dtype for a draft that decodes on a device beside a target that was loaded in `target`. On a CPU, "auto"
// quantises the draft to int8 if the target keeps its blocks (model::kAsStored): a draft of 16 bits would read as many
// bytes for a token as several layers of such a target. EAGLE-3 heads have only unquantised weights, so they get
// side_dtype().
at::ScalarType resolve_draft_dtype(const std::string& flag, const DraftConfig& config, at::Device device,
                                   at::ScalarType target);

// Loads a draft as load_for_decoding() does. `target` is the whole target. An EAGLE-3 head shares the target's
// embedding, so for it `target` may hold only the embedding.
DraftPtr load_draft(const std::filesystem::path& directory, const model::Decoder& target, at::Device device,
                    at::ScalarType dtype);

}  // namespace specdec::decode
