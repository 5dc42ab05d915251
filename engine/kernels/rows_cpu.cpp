// Implements norm, rotary embedding and gated activation on the CPU, with gradients where they are needed. Forward and
// backward each read the rows once, whereas ATen would allocate a tensor for every step of the formula. Arithmetic is
// fp32; bf16 is rounded once, at the end. No sum depends on the number of threads.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/tensor_data.h"
#include "engine/kernels/variants.h"

namespace specdec::kernels::cpu {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <class T>
T* room(const at::Tensor& x) {
  return static_cast<T*>(x.mutable_data_ptr());
}

// Gives access to rows of n numbers as fp32: in place if the rows are fp32, else through a converted copy.
template <class T>
class WideRow {
 public:
  explicit WideRow(int64_t n) : n_(n), memory_(std::is_same_v<T, float> ? 0 : static_cast<size_t>(n)) {}
  const float* read(const T* row) {
    if constexpr (std::is_same_v<T, float>) return row;
    kernels<T>().widen(row, n_, memory_.data());
    return memory_.data();
  }
  // Returns the buffer that the caller fills; deliver() then rounds its contents to `row`.
  float* write(T* row) {
    if constexpr (std::is_same_v<T, float>) return row;
    return memory_.data();
  }
  void deliver(T* row) {
    if constexpr (!std::is_same_v<T, float>) kernels<T>().narrow(memory_.data(), n_, row);
  }

 private:
  int64_t n_;
  std::vector<float> memory_;
};

// Runs f(begin, end) in parallel over blocks of rows. A block has at least about 16384 numbers, so that its work
// outweighs the cost of a thread.
template <class F>
void over_rows(int64_t rows, int64_t n, const F& f) {
  at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, n)), f);
}

void norm_rows(const at::Tensor& x, const at::Tensor& weight, float eps, float offset, const at::Tensor& out) {
  const int64_t n = x.size(-1);
  by_dtype(x, [&]<class T>() {
    over_rows(x.numel() / n, n, [&](int64_t begin, int64_t end) {
      WideRow<T> in(n), to(n);
      for (int64_t r = begin; r < end; ++r) {
        T* const row = room<T>(out) + r * n;
        kernels<T>().rms_norm(in.read(data<T>(x) + r * n), data<T>(weight), eps, offset, n, to.write(row));
        to.deliver(row);
      }
    });
  });
}

// The gradients of norm weights are summed within blocks of this many rows, then over the blocks.
constexpr int64_t kNormBlock = 64;

struct Norm : torch::autograd::Function<Norm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double eps,
                            double offset) {
    const at::Tensor out = at::empty_like(x);
    norm_rows(x, weight, static_cast<float>(eps), static_cast<float>(offset), out);
    context->save_for_backward({x, weight});
    context->saved_data["eps"] = eps;
    context->saved_data["offset"] = offset;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], dy = upstream[0].contiguous(), dx = at::empty_like(x);
    const auto eps = static_cast<float>(context->saved_data["eps"].toDouble()),
               offset = static_cast<float>(context->saved_data["offset"].toDouble());
    const int64_t n = x.size(-1), rows = x.numel() / n, blocks = (rows + kNormBlock - 1) / kNormBlock;
    const at::Tensor sums = at::zeros({blocks, n}, x.options().dtype(at::kFloat));
    by_dtype(x, [&]<class T>() {
      at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
        WideRow<T> in(n), grad(n), to(n);
        for (int64_t r = first * kNormBlock; r < std::min(rows, last * kNormBlock); ++r) {
          T* const row = room<T>(dx) + r * n;
          kernels<T>().rms_norm_grad({in.read(data<T>(x) + r * n), grad.read(data<T>(dy) + r * n), n, eps, offset,
                                      to.write(row), room<float>(sums) + r / kNormBlock * n},
                                     data<T>(weight));
          to.deliver(row);
        }
      });
    });
    return {dx, sums.sum(0).to(weight.scalar_type()), at::Tensor(), at::Tensor()};
  }
};

// Rotates the heads of x [..., H, D] (rotary embedding); cosines and sines are [rows, half].
void rotate(const at::Tensor& x, const at::Tensor& cosines, const at::Tensor& sines, const at::Tensor& out) {
  const int64_t heads = x.size(-2), d = x.size(-1), half = cosines.size(-1);
  by_dtype(x, [&]<class T>() {
    over_rows(x.numel() / (heads * d), heads * d, [&](int64_t begin, int64_t end) {
      WideRow<T> in(d), to(d);
      for (int64_t i = begin * heads; i < end * heads; ++i) {
        const float* from = in.read(data<T>(x) + i * d);
        T* const row = room<T>(out) + i * d;
        float* const turned = to.write(row);
        const int64_t angle = i / heads * half;
        kernels<T>().rope(from, data<float>(cosines) + angle, data<float>(sines) + angle, 2 * half, turned);
        std::copy(from + 2 * half, from + d, turned + 2 * half);
        to.deliver(row);
      }
    });
  });
}

struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& c, const at::Tensor& s) {
    context->save_for_backward({c, s});
    const at::Tensor out = at::empty_like(x);
    rotate(x, c, s, out);
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor dy = upstream[0].contiguous(), dx = at::empty_like(dy);
    rotate(dy, saved[0], saved[1].neg(), dx);
    return {dx, at::Tensor(), at::Tensor()};
  }
};

// Calls f<T>(at, n) in parallel for numbers [at, at + n) of x, in pieces small enough for a cache.
template <class F>
void over_pieces(const at::Tensor& x, const F& f) {
  constexpr int64_t kPiece = 2048;
  const int64_t total = x.numel(), pieces = (total + kPiece - 1) / kPiece;
  by_dtype(x, [&]<class T>() {
    over_rows(pieces, kPiece, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f.template operator()<T>(i * kPiece, std::min(kPiece, total - i * kPiece));
    });
  });
}

enum class Activation { kSilu, kGeluTanh };
void gated(Activation activation, const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  over_pieces(gate, [&]<class T>(int64_t at, int64_t n) {
    WideRow<T> g(n), u(n), to(n);
    T* const row = room<T>(out) + at;
    (activation == Activation::kSilu ? kernels<T>().silu_mul : kernels<T>().gelu_tanh_mul)(
        g.read(data<T>(gate) + at), u.read(data<T>(up) + at), n, to.write(row));
    to.deliver(row);
  });
}

struct Gate : torch::autograd::Function<Gate> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate, const at::Tensor& up) {
    const at::Tensor out = at::empty_like(gate);
    gated(Activation::kSilu, gate, up, out);
    context->save_for_backward({gate, up});
    return out;
  }
  static variable_list backward(AutogradContext* context, variable_list upstream) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &gate = saved[0], &up = saved[1], dy = upstream[0].contiguous(), dgate = at::empty_like(gate),
                     dup = at::empty_like(up);
    over_pieces(gate, [&]<class T>(int64_t at, int64_t n) {
      WideRow<T> g(n), u(n), grad(n), to_gate(n), to_up(n);
      T *const gate_row = room<T>(dgate) + at, *const up_row = room<T>(dup) + at;
      kernels<T>().silu_mul_grad({g.read(data<T>(gate) + at), u.read(data<T>(up) + at), grad.read(data<T>(dy) + at), n,
                                  to_gate.write(gate_row), to_up.write(up_row)});
      to_gate.deliver(gate_row);
      to_up.deliver(up_row);
    });
    return {dgate, dup};
  }
};

// Returns the angles' cosines or sines for every row of x, as contiguous fp32.
at::Tensor angles_of(const at::Tensor& x, const at::Tensor& angles) {
  return angles.expand_as(x.select(-2, 0).slice(-1, 0, angles.size(-1))).to(at::kFloat).contiguous();
}

}  // namespace

void rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options, const at::Tensor& out) {
  into(out, [&](const at::Tensor& to) {
    norm_rows(x.contiguous(), weight.contiguous(), static_cast<float>(options.eps), static_cast<float>(options.offset),
              to);
  });
}

void rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out) {
  into(out, [&](const at::Tensor& to) { rotate(x.contiguous(), angles_of(x, cos), angles_of(x, sin), to); });
}

void silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  into(out, [&](const at::Tensor& to) { gated(Activation::kSilu, gate.contiguous(), up.contiguous(), to); });
}
void gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  into(out, [&](const at::Tensor& to) { gated(Activation::kGeluTanh, gate.contiguous(), up.contiguous(), to); });
}

at::Tensor trained_rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options) {
  return Norm::apply(x.contiguous(), weight.contiguous(), options.eps, options.offset);
}

at::Tensor trained_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  return Rope::apply(x.contiguous(), angles_of(x, cos), angles_of(x, sin));
}

at::Tensor trained_silu_mul(const at::Tensor& gate, const at::Tensor& up) {
  return Gate::apply(gate.contiguous(), up.contiguous());
}

}  // namespace specdec::kernels::cpu
