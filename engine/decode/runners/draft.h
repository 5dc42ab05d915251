// A draft of any kind, loaded for decoding. Each kind is a class in a file of its own (decoder_draft.cpp,
// eagle_draft.cpp) and a row of the table in draft.cpp. Callers do not ask which kind a draft is.
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

// Runs a draft over texts that exist already, beside the target's passes over them (teacher forcing).
class DraftScorer {
 public:
  // A pass of the target over some texts.
  struct Pass {
    struct Position {
      size_t text;       // its index among the texts
      int64_t position;  // of the token after which a distribution is wanted
      int64_t logit;     // its row among the logits of the target's pass
    };
    int64_t begin = 0;                           // where it begins in every text
    std::span<const size_t> texts;               // those that have a part in it
    std::span<const model::SequencePart> parts;  // of the target
    std::span<const Position> wanted;
  };
  virtual ~DraftScorer() = default;
  // Returns the first position of a text after which this kind of draft has a distribution.
  virtual int64_t first_position() const { return 0; }
  // Starts over with new texts, which have these numbers of tokens.
  virtual void begin(std::span<const int64_t> lengths) = 0;
  // Returns the observer that must see the hidden states of the target's next pass; empty if the draft needs none.
  // Valid until logits() is called.
  virtual model::HiddenObserver observer() { return {}; }
  // Returns the logits [wanted, V], on the draft's device and in its dtype or in fp32. The passes over a text follow
  // each other without a gap.
  virtual at::Tensor logits(const Pass& pass) = 0;
};

class Draft {
 public:
  virtual ~Draft() = default;
  // Returns the decoder's configuration, or what stands for it: the vocabulary, and the layers that have caches.
  virtual const model::DecoderConfig& config() const = 0;
  virtual at::ScalarType dtype() const = 0;  // as given to load_draft()
  virtual std::optional<model::HeadMemory> head_memory() const { return std::nullopt; }
  // Returns the runner for the target that `target` runs, which must outlive it. cache_bytes as for
  // make_model_runner().
  virtual std::unique_ptr<CausalModel> make_runner(CausalModel& target, int64_t cache_bytes = 0) const = 0;
  // The draft must outlive the scorer.
  virtual std::unique_ptr<DraftScorer> make_scorer() const = 0;
};
using DraftPtr = std::shared_ptr<const Draft>;

DraftPtr make_draft(std::shared_ptr<const model::Decoder> decoder);
DraftPtr make_draft(std::shared_ptr<const model::EagleHead> head);
// Returns null without a draft.
std::unique_ptr<CausalModel> make_draft_runner(const DraftPtr& draft, CausalModel& target, int64_t cache_bytes = 0);

// What is known of a draft before its weights are loaded.
struct DraftConfig {
  model::DecoderConfig config;            // as Draft::config()
  std::optional<model::HeadMemory> head;  // as Draft::head_memory()
};
// Throws Error(kModel) if the files do not load, or hold a kind that specdec does not run.
DraftConfig load_draft_config(const std::filesystem::path& directory, const model::DecoderConfig& target);

// Resolves --dtype for a draft that decodes on a device. A head has only plain weights: it then gets side_dtype().
at::ScalarType resolve_draft_dtype(const std::string& flag, const DraftConfig& config, at::Device device);

// Loads a draft as load_for_decoding() does. `target` is the whole target, or at least its whole embedding if the draft
// is a head, which shares it.
DraftPtr load_draft(const std::filesystem::path& directory, const model::Decoder& target, at::Device device,
                    at::ScalarType dtype);

}  // namespace specdec::decode
