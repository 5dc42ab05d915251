// One training step without its update: batches -> loss -> gradients of the draft's parameters.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

#include "base/clock.h"
#include "distill/defaults.h"
#include "distill/losses.h"
#include "distill/optimizer.h"
#include "distill/teacher.h"
#include "engine/model/weights.h"

namespace specdec::distill {

struct GradientSource {
  const model::Decoder* draft = nullptr;  // its weights require gradients
  Teacher* teacher = nullptr;             // null for ce
  LossOptions loss;
  at::Tensor kept;  // of LossInput
};

struct GradientFigures {
  double loss = 0, acceptance = 0;
  int64_t tokens = 0;  // without padding
  bool finite = true;  // else the gradients are worth nothing
};

// Adds the gradients of the mean over all batches to those that the parameters have. `between` is called between
// stretches of work and may throw.
GradientFigures add_gradients(const GradientSource& source, const std::vector<Batch>& batches,
                              const std::function<void()>& between = {});

// Time of a step, by steps on batches of the training set that change nothing. Takes about `seconds`, and at least one
// small step.
StepCost measure_step(const GradientSource& source, const std::vector<NamedTensor>& parameters,
                      const std::vector<TokenRow>& rows, double seconds, const Clock& clock,
                      const std::function<void()>& between = {});

}  // namespace specdec::distill
