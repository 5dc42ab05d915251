// AdamW with decoupled weight decay (Loshchilov & Hutter 2019; the arithmetic is that of torch.optim.AdamW, fused) and
// clipping by the global norm. Parameters in bf16 or fp16 have an fp32 master copy. Several ranks may divide the
// optimizer state (ZeRO stage 1: Rajbhandari et al. 2020, arXiv 1910.02054): each rank keeps the moments and master
// copies of its share of the values, updates that share, and receives the updated values of the other shares.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <vector>

#include "base/safetensors_writer.h"
#include "engine/parallel/ranks.h"

namespace specdec::distill {

struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
  double weight_decay = 0.0;  // applies to tensors with at least two dimensions; norms and biases do not decay
  double clip = 1.0;          // largest global gradient norm, 0 = no clipping
};

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Each rank updates a share of every tensor's values. Returns where the share of rank `rank` begins, as an offset in
// values from the start of one tensor. The share ends where the share of `rank` + 1 begins. The tensor has `values`
// values, and `first` is its offset in the concatenation of all parameters, which has `total` values. Over all
// parameters the ranks' shares are about equally large.
int64_t share_begin(int64_t first, int64_t values, int64_t total, int rank, int ranks);

class AdamW {
 public:
  // `parameters` are contiguous leaf tensors, the same on all ranks. step() and load() update them in place. With
  // `shared`, the optimizer state is divided among the ranks, which does not change a single bit of the updated
  // parameters.
  AdamW(std::vector<NamedTensor> parameters, const AdamWOptions& options,
        const parallel::Ranks& ranks = parallel::Ranks::alone(), bool shared = false);

  bool is_shared() const { return shared_; }
  // Returns the global norm of the gradients before clipping; a parameter without a gradient counts as zero. If the
  // norm is NaN or inf, the caller must not call step().
  double grad_norm() const;
  // Updates the parameters once with their current gradients, scaled by min(1, clip / norm); `norm` is the result of
  // grad_norm(). Every rank must call step() with the same gradients.
  void step(double learning_rate, double norm);

  // Returns name and shape of each tensor that a checkpoint keeps: the moments "exp_avg.<name>" and
  // "exp_avg_sq.<name>", "master.<name>" for low-precision parameters, and "steps". All are F32. The list does not
  // depend on the number of ranks.
  std::vector<TensorShape> layout() const;
  // Calls f with the values of the tensors of layout(), in that order, as consecutive flat pieces on the CPU. If the
  // state is divided among the ranks, all ranks must call visit_state(), and f is called on rank 0 only.
  void visit_state(const std::function<void(const at::Tensor& piece)>& f) const;
  // Loads the state from read(name), which returns a whole tensor on the CPU. All ranks call load(), but only rank 0
  // calls `read`. `names` lists every tensor of the checkpoint. Throws Error(kData) for a missing, unknown or wrongly
  // shaped tensor.
  void load(const std::vector<std::string>& names, const std::function<at::Tensor(const std::string& name)>& read);

 private:
  // The values [begin, end) of a flattened parameter that this rank updates, and their optimizer state.
  struct Slot {
    int64_t begin = 0, end = 0;
    at::Tensor master;  // fp32 copy of the values, or the parameter's own values if it is fp32
    at::Tensor exp_avg, exp_avg_sq;
    at::Tensor steps;  // number of updates of the parameter
  };
  struct StateTensor;
  std::vector<StateTensor> tensors() const;
  at::Tensor values(size_t i, int64_t begin, int64_t end) const;  // a view of values [begin, end) of parameter i
  int64_t begin_of(size_t i, int rank) const;
  void exchange(const std::vector<bool>& updated) const;
  void copy_masters() const;

  std::vector<NamedTensor> parameters_;
  AdamWOptions options_;
  const parallel::Ranks& ranks_;
  bool shared_;
  // Offset of each parameter in the concatenation of all; the last entry is the total number of values.
  std::vector<int64_t> first_;
  std::vector<Slot> slots_;
};

}  // namespace specdec::distill
