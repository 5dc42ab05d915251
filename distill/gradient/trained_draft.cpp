#include "distill/gradient/trained_draft.h"

#include <ATen/core/grad_mode.h>

#include <map>

#include "base/error.h"
#include "distill/teacher/teacher.h"
#include "engine/forward/memory_plan.h"
#include "engine/weights/draft_vocab.h"

namespace specdec::distill {

const model::DecoderConfig& TrainedDraft::config() const { return head_ ? head_->config() : decoder_->config; }

int64_t TrainedDraft::num_parameters() const {
  return head_ ? head_->num_parameters() : model::num_parameters(decoder_->config);
}

void TrainedDraft::visit(const std::function<void(const std::string&, at::Tensor&)>& f) const {
  head_ ? head_->visit(f) : decoder_->weights.visit(decoder_->config, f);
}

std::vector<NamedTensor> TrainedDraft::trainable() const {
  std::vector<NamedTensor> out;
  visit([&](const std::string& name, at::Tensor& t) {
    t.requires_grad_(true);
    out.push_back({name, t});
  });
  return out;
}

GradientSource TrainedDraft::source(Teacher* teacher, const LossOptions& loss) const {
  const std::vector<int32_t>& kept = config().draft_vocab;
  return {decoder_, teacher, loss, kept.empty() ? at::Tensor() : model::draft_vocab_index(kept, at::kCPU), 0, head_};
}

RowLogits TrainedDraft::row_logits(const Batch& batch) const {
  return head_ ? head_->row_logits(batch) : distill::row_logits(*decoder_, batch);
}

void TrainedDraft::write(const std::filesystem::path& directory) const {
  head_ ? head_->write(directory) : model::save_decoder(*decoder_, directory);
}

void TrainedDraft::write_as(at::ScalarType dtype, const std::filesystem::path& directory) const {
  if (head_) return head_->write_as(dtype, directory);
  model::Decoder decoder = *decoder_;
  decoder.weights.visit(decoder.config, [&](const std::string&, at::Tensor& t) { t = t.detach().to(dtype); });
  model::save_decoder(decoder, directory);
}

void TrainedDraft::round_to(at::ScalarType dtype) const {
  at::NoGradGuard guard;
  visit([&](const std::string&, at::Tensor& t) { t.detach().copy_(t.detach().to(dtype)); });
}

void TrainedDraft::read(const std::filesystem::path& directory) const {
  at::NoGradGuard guard;
  std::map<std::string, at::Tensor> tensors;
  const auto collect = [&](const std::string& name, at::Tensor& t) { tensors[name] = t; };
  if (head_) {
    head_->visit_saved(directory, collect);
  } else {
    model::Decoder saved = model::load_decoder(directory, at::kCPU, decoder_->weights.embed.scalar_type());
    saved.weights.visit(saved.config, collect);
  }
  visit([&](const std::string& name, at::Tensor& t) {
    const auto it = tensors.find(name);
    if (it == tensors.end() || !it->second.sizes().equals(t.sizes()))
      throw Error(ErrorKind::kData,
                  directory.string() + ": " + name + " is missing or has another shape than the draft");
    t.detach().copy_(it->second);
  });
}

}  // namespace specdec::distill
