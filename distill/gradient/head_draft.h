// A draft under training that reads the hidden states of its frozen target. Each kind is a class in files of its own
// (eagle_gradient.h), and a row of the table in distill/run/heads.cpp.
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

// Sums over the branch rows of one depth.
struct DepthFigures {
  double acceptance = 0, rows = 0;
};
struct GradientFigures {
  double loss = 0, acceptance = 0;   // acceptance at depth 1
  std::vector<DepthFigures> deeper;  // from depth 2 on
  int64_t tokens = 0;                // without padding
  bool finite = true;                // if false, the gradients are useless
};

class HeadDraft {
 public:
  using Visit = std::function<void(const std::string& name, at::Tensor&)>;
  virtual ~HeadDraft() = default;
  virtual const model::DecoderConfig& config() const = 0;  // of its layers: vocabulary, widths and dtype
  virtual int64_t num_parameters() const = 0;
  virtual void visit(const Visit& f) = 0;  // every parameter; they require gradients
  // Visits the parameters that are written in a directory.
  virtual void visit_saved(const std::filesystem::path& directory, const Visit& f) const = 0;
  // Write the files of a draft into an existing directory. write_as() converts the weights.
  virtual void write(const std::filesystem::path& directory) const = 0;
  virtual void write_as(at::ScalarType dtype, const std::filesystem::path& directory) const = 0;
  // Return what ranks must know to make a head of the same shapes (under "head" the name of its kind for --draft), and
  // the weights that it has besides parameters.
  virtual Json shape() const = 0;
  virtual std::vector<at::Tensor> frozen_weights() const { return {}; }
  // Makes the head read the target from `divided`, whose layers the ranks hold together; null if each rank has them
  // all.
  virtual void divide(std::shared_ptr<DividedTarget> divided) = 0;

  // Computes the gradients of the loss over the batches and sets them as the parameters' gradients, as
  // compute_gradients() of gradient.h does. `rows` has the rows of all ranks, as count_rows() returns them; if it is
  // empty, the batches' own rows count.
  virtual GradientFigures compute_gradients(const LossOptions& loss, const std::vector<Batch>& batches,
                                            GradientSums& sums, const std::function<void()>& between,
                                            const std::vector<int64_t>& rows) const = 0;
  // Returns the number of rows that the loss is a mean over, on all ranks together. Every rank calls it.
  virtual std::vector<int64_t> count_rows(const std::vector<Batch>& batches, const parallel::Ranks& ranks) const = 0;
  // Returns the logits at the learnt positions of a batch for the first drafted position.
  virtual RowLogits row_logits(const Batch& batch) const = 0;
};

}  // namespace specdec::distill
