// A reference to a draft of any kind under training: a decoder, or a head together with the target that the head reads.
// The trainer, evaluation, checkpoints and output use drafts only through this class.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "distill/gradient/gradient.h"
#include "distill/gradient/head_draft.h"
#include "distill/gradient/optimizer.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

class TrainedDraft {
 public:
  TrainedDraft(model::Decoder& decoder) : decoder_(&decoder) {}  // `decoder` must outlive this object
  TrainedDraft(HeadDraft& head) : head_(&head) {}

  // Returns the decoder's configuration, or that of the head's layers: vocabulary, widths and dtype.
  const model::DecoderConfig& config() const;
  int64_t num_parameters() const;
  // Sets requires_grad on every parameter and returns them all.
  std::vector<NamedTensor> trainable() const;
  GradientSource source(Teacher* teacher, const LossOptions& loss) const;
  // Returns the draft's logits at Batch::rows. The draft must outlive the result.
  RowLogits row_logits(const Batch& batch) const;
  // write() saves config.json and model.safetensors in an existing directory; write_as() first converts the weights to
  // `dtype`. read() loads the weights, and throws Error(kData) if a tensor is missing or has another shape.
  void write(const std::filesystem::path& directory) const;
  void write_as(at::ScalarType dtype, const std::filesystem::path& directory) const;
  // Rounds every weight in place to the values that write_as(dtype) would write.
  void round_to(at::ScalarType dtype) const;
  void read(const std::filesystem::path& directory) const;
  void visit(const std::function<void(const std::string&, at::Tensor&)>& f) const;  // calls f for every parameter

 private:
  model::Decoder* decoder_ = nullptr;
  HeadDraft* head_ = nullptr;
};

}  // namespace specdec::distill
