// Computes the gradients of the draft's parameters for one training step, without the update.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "base/clock.h"
#include "distill/gradient/gradient_sums.h"
#include "distill/gradient/head_draft.h"
#include "distill/gradient/optimizer.h"
#include "distill/loss/losses.h"
#include "distill/rows/rejects.h"
#include "distill/settings/defaults.h"
#include "distill/teacher/branches.h"
#include "distill/teacher/teacher.h"
#include "engine/weights/weights.h"

namespace specdec::distill {

// What makes the learnt rows of a batch differ from each other.
struct RowTerms {
  // Learns each row at the temperature at which it was served (kGreedyTemperature for 0) where that is known.
  bool served_temperatures = false;
  // The tokens at which the target refused a draft, or null if none are known. They have the weight `reject_weight`
  // instead of 1.
  const Rejects* rejects = nullptr;
  double reject_weight = 1;
};
// The temperature that stands for 0. At 0 the target has a single token, and the draft either agrees or not, which has
// no useful gradient. At 0.3 both distributions are so sharp that hardly more than their likeliest tokens count.
inline constexpr float kGreedyTemperature = 0.3f;

struct GradientSource {
  const model::Decoder* draft = nullptr;  // its weights require gradients; null: `head`
  Teacher* teacher = nullptr;             // null if the loss is ce alone
  LossOptions loss;
  at::Tensor kept;     // ids of the draft's tokens, as LossInput::kept
  int64_t learnt = 0;  // rows that the loss is a mean over, those of other ranks included; 0 = those of the batches
  const HeadDraft* head = nullptr;
  std::vector<int64_t> head_rows = {};  // HeadDraft::count_rows()
  // Lets the draft, which must then be a decoder, write roll-outs over the training rows that the batches' indices
  // refer to. Their random numbers depend on `step`. `anchors` is the number of anchors over which the mean of a depth
  // is taken, on all ranks together; 0 = those of the batches.
  OnPolicyOptions on_policy = {};
  const std::vector<TokenRow>* rows = nullptr;
  int64_t step = 0, anchors = 0;
  // The mean acceptance at the depths from 2 on; that of depth 1 is in loss.acceptance. Together they determine the
  // weights of the depths (depth_weights()).
  std::vector<double> deeper = {};
  RowTerms terms = {};     // for a decoder alone
  bool recompute = false;  // as model::TrainBatch::recompute; for a decoder without branches alone

  const model::DecoderConfig& config() const { return head ? head->config() : draft->config; }
};

// Computes the gradients of the mean loss over all batches in fp32, and sets them as the gradients of the draft's
// parameters. `sums` are those of the draft's parameters; what they hold is lost. If source.learnt is set, loss,
// acceptance and gradients are this rank's share; summed over the ranks they are those of the whole step. lk_hybrid
// follows source.loss.acceptance, or 0 if that is not set. With branches, the loss is the sum of the depths' mean
// losses, each times its weight (depth_weights()), and lk_hybrid follows each depth's own acceptance. ce counts at
// depth 1 only, because labels are known there alone. `between` is called repeatedly during the work and may throw to
// abandon it.
GradientFigures compute_gradients(const GradientSource& source, const std::vector<Batch>& batches, GradientSums& sums,
                                  const std::function<void()>& between = {});

// The input of a training step.
struct StepInput {
  GradientSource source;
  std::vector<NamedTensor> parameters;  // of the source's draft
  const std::vector<TokenRow>& rows;    // training rows
  int ranks = 1;                        // that share each step
};

// Measures the time of a training step by running a few steps on training batches, without changing the weights. Takes
// about `seconds`, and at least one small step.
StepCost measure_step(const StepInput& input, double seconds, const Clock& clock,
                      const std::function<void()>& between = {});

}  // namespace specdec::distill
