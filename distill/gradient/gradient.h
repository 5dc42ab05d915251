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

// Options that give each row of the loss its own temperature and weight.
struct RowTerms {
  // If true, the loss of a row is computed at the temperature with which the row's request was served. Rows whose
  // serving temperature is unknown use LossOptions::temperature. Serving temperatures below kGreedyTemperature are
  // raised to it.
  bool served_temperatures = false;
  // The tokens at which the target rejected a draft token in production; null if no rejects were recorded. In the loss
  // these tokens have the weight `reject_weight`, all other tokens 1.
  const Rejects* rejects = nullptr;
  double reject_weight = 1;
};
// The lowest serving temperature that the loss uses: lower ones are raised to it. At 0 the target's distribution is
// one-hot and acceptance is 0 or 1, which gives no useful gradient. At 0.3 both distributions are nearly concentrated
// on their likeliest tokens.
inline constexpr float kGreedyTemperature = 0.3f;

struct GradientSource {
  // The draft if it is a decoder, whose weights require gradients; null if the draft is a head (member `head`).
  const model::Decoder* draft = nullptr;
  Teacher* teacher = nullptr;  // null if the loss is only ce (cross entropy)
  LossOptions loss;
  at::Tensor kept;     // ids of a reduced draft vocabulary, see LossInput::kept; undefined = whole vocabulary
  int64_t learnt = 0;  // rows in the mean loss, summed over all ranks; 0 = count the rows of the batches
  const HeadDraft* head = nullptr;
  std::vector<int64_t> head_rows = {};  // divisors of a head's mean losses (count_rows()); empty = not given
  // Options of roll-outs: continuations that the draft itself generates from positions of the training rows (a decoder
  // draft only). `rows` are the training rows, to which Batch::row_index refers. `step` seeds the random numbers.
  // `anchors` is the number of roll-outs over all ranks, the divisor of the mean loss at each draft position; 0 = count
  // those of the batches.
  OnPolicyOptions on_policy = {};
  const std::vector<TokenRow>* rows = nullptr;
  int64_t step = 0, anchors = 0;
  // Mean acceptance at draft positions 2, 3, … of the roll-outs; loss.acceptance has the mean of position 1.
  // depth_weights() computes the weight of each position in the loss from these means.
  std::vector<double> deeper = {};
  RowTerms terms = {};     // used only if the draft is a decoder
  bool recompute = false;  // see model::TrainBatch::recompute; only for a decoder without roll-outs

  const model::DecoderConfig& config() const { return head ? head->config() : draft->config; }
};

// Computes the gradients of the mean loss over all batches in fp32, and sets them as the gradients of the draft's
// parameters. `sums` must be made for the draft's parameters and is cleared first. If source.learnt is set, loss,
// acceptance and gradients are this rank's terms of the sums over all ranks.
// The weight λ of lk_hybrid is computed from source.loss.acceptance, or from 0 if that is not set. With roll-outs, the
// loss is Σ over draft positions of weight (depth_weights()) · mean loss, and λ is computed from each position's own
// acceptance. The loss term ce is used at position 1 only, because the text has no labels for later positions.
// `between` is called repeatedly and may throw to abandon the computation.
GradientFigures compute_gradients(const GradientSource& source, const std::vector<Batch>& batches, GradientSums& sums,
                                  const std::function<void()>& between = {});

// The input of a training step.
struct StepInput {
  GradientSource source;
  std::vector<NamedTensor> parameters;  // of source.draft or source.head
  const std::vector<TokenRow>& rows;    // training rows
  int ranks = 1;                        // number of ranks that divide the batches of a step
};

// Measures the time of a training step by running a few steps on training batches, without changing the weights. The
// measurement takes about `seconds`, or longer if one small step takes longer.
StepCost measure_step(const StepInput& input, double seconds, const Clock& clock,
                      const std::function<void()>& between = {});

}  // namespace specdec::distill
