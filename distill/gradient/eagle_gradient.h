// Trains an EAGLE-3 head on its own hidden states (the training-time test of Li et al. 2025, arXiv 2503.01840). Step 0
// pairs the target's hidden state at position t with token t + 1, and predicts token t + 2. Step i pairs the head's own
// hidden state of step i − 1 with token t + 1 + i, and predicts token t + 2 + i. As in drafting, the hidden states come
// from the head itself from step 1 on; the tokens always come from the text.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "distill/gradient/head_draft.h"
#include "engine/weights/eagle_head.h"

namespace specdec::distill {

// An EAGLE-3 head under training, and the frozen target whose hidden states it reads.
struct EagleDraft final : HeadDraft {
  EagleDraft() = default;
  EagleDraft(model::EagleHead of, std::shared_ptr<const model::Decoder> read, int64_t steps = 5, double decay = 0.8)
      : head(std::move(of)), target(std::move(read)), ttt_steps(steps), ttt_decay(decay) {}

  model::EagleHead head;                         // the head under training; its parameters require gradients
  std::shared_ptr<const model::Decoder> target;  // the target; if `divided` is set, without layers
  int64_t ttt_steps = 5;
  double ttt_decay = 0.8;  // step i has the weight ttt_decay^i
  int64_t chunk_rows = 0;  // rows of logits computed at a time, see HeadLossInput::chunk_rows
  std::shared_ptr<DividedTarget> divided = nullptr;

  const model::DecoderConfig& config() const override { return head.config.layer; }
  int64_t num_parameters() const override { return model::num_parameters(head.config); }
  void visit(const Visit& f) override { head.weights.visit(head.config, f); }
  void visit_saved(const std::filesystem::path& directory, const Visit& f) const override;
  void write(const std::filesystem::path& directory) const override { model::save_eagle_head(head, directory); }
  void write_as(at::ScalarType dtype, const std::filesystem::path& directory) const override;
  Json shape() const override;
  std::vector<at::Tensor> frozen_weights() const override;  // the head's own embedding, if it has one
  void divide(std::shared_ptr<DividedTarget> over) override { divided = std::move(over); }
  // Returns the loss over all steps and the acceptance at the first drafted position.
  GradientFigures compute_gradients(const LossOptions& loss, const std::vector<Batch>& batches, GradientSums& sums,
                                    const std::function<void()>& between,
                                    const std::vector<int64_t>& rows) const override;
  std::vector<int64_t> count_rows(const std::vector<Batch>& batches, const parallel::Ranks& ranks) const override;
  RowLogits row_logits(const Batch& batch) const override;
};
// Makes a head with uninitialised weights whose shapes `shape` (HeadDraft::shape() of another rank) gives.
std::unique_ptr<EagleDraft> eagle_like(const Json& shape, const std::shared_ptr<const model::Decoder>& target,
                                       const std::string& where);

// Figures of one step (draft position) of the training-time test: mean loss (not multiplied by ttt_decay^i), mean
// acceptance Σ min(p, q), number of rows.
struct EagleStepFigures {
  double loss = 0, acceptance = 0;
  int64_t rows = 0;
};
struct EagleFigures {
  std::vector<EagleStepFigures> steps;
  bool finite = true;
};

// Adds the gradients of Σ_i ttt_decay^i · (mean loss of the rows of step i) to the sums of the head's parameters. A row
// is in the loss if the token that it predicts has loss_mask 1. Each step's mean is over its own rows, and the sum is
// not divided by the sum of the weights, as in the speculators package.
// The logits and the loss are computed for a chunk of rows at a time (head_loss.h). The λ of lk_hybrid is computed from
// loss.acceptance, or from 0 if loss.acceptance is not set.
// `rows` has the number of rows of each step over all ranks (count_eagle_rows()). If `rows` is given, the loss,
// acceptance and gradients are this rank's terms of the sums over all ranks. If `rows` is empty, the rows of `batches`
// are counted.
EagleFigures add_eagle_gradients(const EagleDraft& draft, LossOptions loss, const std::vector<Batch>& batches,
                                 GradientSums& sums, const std::function<void()>& between = {},
                                 const std::vector<int64_t>& rows = {});

// Returns the number of rows of each step in the batches of all ranks together. A collective: every rank must call it.
std::vector<int64_t> count_eagle_rows(const std::vector<Batch>& batches, int64_t steps, const parallel::Ranks& ranks);

// Returns the logits of step 0 (the first draft position) at Batch::rows. Throws Error(kInternal) if the second token
// of a row has loss_mask 1, because an EAGLE-3 head cannot predict the second token.
RowLogits eagle_row_logits(const EagleDraft& draft, const Batch& batch);

}  // namespace specdec::distill
