// Interface of a draft under training that reads the hidden states of its frozen target. Each kind of head implements
// it in its own files (such as eagle_gradient.h) and has one row in the table of distill/run/heads.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "distill/gradient/gradient_sums.h"
#include "distill/loss/losses.h"
#include "distill/rows/batcher.h"
#include "distill/teacher/divided_target.h"
#include "distill/teacher/teacher.h"
#include "engine/config/config.h"
#include "engine/parallel/ranks.h"

namespace specdec::distill {

// Sums over the rows at one draft position of the roll-outs (texts that the draft itself continued, branches.h): the
// acceptance, and the number of rows.
struct DepthFigures {
  double acceptance = 0, rows = 0;
};
struct GradientFigures {
  double loss = 0, acceptance = 0;   // mean loss; mean acceptance at draft position 1
  std::vector<DepthFigures> deeper;  // sums at draft positions 2, 3, … of the draft's own continuations
  int64_t tokens = 0;                // number of tokens, without padding
  bool finite = true;                // if false, the gradients are useless
};

class HeadDraft {
 public:
  using Visit = std::function<void(const std::string& name, at::Tensor&)>;
  virtual ~HeadDraft() = default;
  // Configuration of the head's layers: vocabulary, widths and dtype.
  virtual const model::DecoderConfig& config() const = 0;
  virtual int64_t num_parameters() const = 0;
  virtual void visit(const Visit& f) = 0;  // visits every parameter (each requires gradients)
  // Visits only the parameters that write() saves to `directory`.
  virtual void visit_saved(const std::filesystem::path& directory, const Visit& f) const = 0;
  // Write config.json and the weights into an existing directory. write_as() first converts the weights to `dtype`.
  virtual void write(const std::filesystem::path& directory) const = 0;
  virtual void write_as(at::ScalarType dtype, const std::filesystem::path& directory) const = 0;
  // shape() returns what another rank needs to build a head of the same shapes; its key "head" names the kind as
  // --draft does. frozen_weights() returns the weights that are not trained.
  virtual Json shape() const = 0;
  virtual std::vector<at::Tensor> frozen_weights() const { return {}; }
  // Makes the head read the target's hidden states from `divided`, whose layers are divided among the ranks; null means
  // that each rank has the whole target.
  virtual void divide(std::shared_ptr<DividedTarget> divided) = 0;

  // Computes the gradients of the loss over the batches and sets them as the parameters' gradients, as
  // compute_gradients() of gradient.h does. `rows` holds the divisors of the mean losses (count_rows()); if it is
  // empty, the rows of `batches` are counted.
  virtual GradientFigures compute_gradients(const LossOptions& loss, const std::vector<Batch>& batches,
                                            GradientSums& sums, const std::function<void()>& between,
                                            const std::vector<int64_t>& rows) const = 0;
  // Returns the divisors of the mean losses: numbers of rows, summed over all ranks. A collective: every rank must call
  // it.
  virtual std::vector<int64_t> count_rows(const std::vector<Batch>& batches, const parallel::Ranks& ranks) const = 0;
  // Returns the logits for the first draft position at Batch::rows.
  virtual RowLogits row_logits(const Batch& batch) const = 0;
};

}  // namespace specdec::distill
