// Options of `specdec distill`.
#pragma once

#include <cstdint>
#include <string>

#include "base/run_options.h"

namespace specdec::distill {

struct DistillOptions {
  std::string target, data, draft, out;  // draft: prune:N | model:MODEL | config:FILE
  std::string loss = "lk_hybrid";        // ce | kl | tv | lk_hybrid; ce needs no target (--target then gives the tokenizer and may be a config-only directory)
  double lk_eta = 3.0;
  double learning_rate = 0;              // 0 = by draft kind (prune 2e-3·…, see distill/schedule)
  double min_lr_ratio = 0.05, warmup_ratio = 0.03, weight_decay = 0.0, clip = 1.0;
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  int64_t batch_tokens = 4096;           // tokens of one micro-batch, packed
  int64_t accumulate = 1;
  int64_t sequence_length = 0;           // 0 = longest row, at most the models' context
  int64_t max_steps = 0;                 // 0 = by epochs or time
  double epochs = 0;                     // 0 = 3, unless steps or time are given
  double time_limit_seconds = 0;
  int64_t evaluate_every = 0;            // steps; 0 = 10 evaluations over the run
  int64_t evaluate_rows = 64;
  int64_t checkpoint_every = 0;          // steps; 0 = at evaluations
  double temperature = 1.0;              // of p and q in the loss and in the measured acceptance
  bool resume = false;
  DeviceOptions device;
};

}  // namespace specdec::distill
