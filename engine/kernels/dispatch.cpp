// Chooses the variant (CPU, CUDA or reference) of every operation in ops.h. No other file makes this choice.
#include <c10/core/GradMode.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "engine/kernels/block_quantised.h"
#include "engine/kernels/cuda.h"
#include "engine/kernels/ops.h"
#include "engine/kernels/quantised_matrix.h"
#include "engine/kernels/variants.h"

namespace specdec::kernels {

namespace {

bool forced_by_environment() {
  const char* value = std::getenv("SPECDEC_KERNELS");
  return value && std::strcmp(value, "ref") == 0;
}

std::atomic<bool>& forced() {
  static std::atomic<bool> on = forced_by_environment();
  return on;
}

enum class Variant { kRef, kCpu, kCuda, kTrained };

// Returns the variant for these inputs. Our own kernels need all inputs on one device and in one dtype that they
// support. If gradients are needed, we have own kernels only on the CPU (kTrained). Everything else runs on ATen
// (kRef).
Variant choose(std::initializer_list<const at::Tensor*> inputs) {
  if (reference_forced()) return Variant::kRef;
  const at::Tensor& first = **inputs.begin();
  const auto device = first.device();
  const auto dtype = first.scalar_type();
  bool trained = false;
  for (const at::Tensor* input : inputs) {
    if (!input->defined()) continue;
    trained |= c10::GradMode::is_enabled() && input->requires_grad();
    if (input->device() != device || input->scalar_type() != dtype) return Variant::kRef;
  }
  const bool common = dtype == at::kFloat || dtype == at::kBFloat16;
  if (trained) return device.is_cpu() && common ? Variant::kTrained : Variant::kRef;
  if (device.is_cpu() && common) return Variant::kCpu;
  if (device.is_cuda() && (common || dtype == at::kHalf)) return Variant::kCuda;
  return Variant::kRef;
}

at::Tensor or_empty_like(const at::Tensor& out, const at::Tensor& like) {
  return out.defined() ? out : at::empty(like.sizes(), like.options());
}

at::Tensor int8_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const auto converted = [](const at::Tensor& t, at::ScalarType dtype) { return t.defined() ? t.to(dtype) : t; };
  if (x.is_cuda() && !reference_forced()) {
    // The kernel reads 16-bit inputs, so fp32 inputs are rounded to bf16.
    const at::ScalarType narrow = x.scalar_type() == at::kFloat ? at::kBFloat16 : x.scalar_type();
    auto shape = x.sizes().vec();
    shape.back() = weight.size(0);
    const at::Tensor result = at::empty(shape, x.options().dtype(narrow));
    cuda::linear(x.to(narrow), weight, converted(bias, narrow), result);
    return result.to(x.scalar_type());
  }
  const at::Tensor wide = dequantise_int8(weight, x.size(-1));
  return linear(x.to(at::kFloat), wide, converted(bias, at::kFloat)).to(x.scalar_type());
}

// Multiplies x by a matrix quantised by group. On a GPU, up to kMaxProductRows rows are multiplied by the quantised
// matrix directly; more rows are multiplied by a temporary 16-bit copy.
at::Tensor group_quantised_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t n = weight.size(0), k = x.size(-1);
  if (!x.is_cuda() || x.scalar_type() == at::kFloat || reference_forced()) {
    const at::Tensor wide = dequantise({weight, {}}, k), offset = bias.defined() ? bias.to(at::kFloat) : bias;
    return linear(x.to(at::kFloat), wide, offset).to(x.scalar_type());
  }
  if (x.numel() > kMaxProductRows * k) {
    const at::Tensor wide = at::empty({n, k}, x.options());
    cuda::dequantise(weight, wide);
    return ref::linear(x, wide, bias, {});
  }
  auto shape = x.sizes().vec();
  shape.back() = n;
  const at::Tensor result = at::empty(shape, x.options());
  cuda::linear(x, weight, bias, result);
  return result;
}

}  // namespace

bool reference_forced() { return forced().load(std::memory_order_relaxed); }
void force_reference(bool on) { forced() = on; }

at::Tensor embedding(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out) {
  return ref::embedding(table, ids, out);
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, const NormOptions& options, const at::Tensor& out) {
  const Variant variant = choose({&x, &weight});
  const bool uncovered = variant == Variant::kCuda && (options.offset != 0 || options.rounds_last);
  if (variant == Variant::kTrained && !out.defined()) return cpu::trained_rms_norm(x, weight, options);
  if (variant == Variant::kRef || variant == Variant::kTrained || uncovered)
    return ref::rms_norm(x, weight, options, out);
  at::Tensor result = or_empty_like(out, x);
  variant == Variant::kCpu ? cpu::rms_norm(x, weight, options, result) : cuda::rms_norm(x, weight, options.eps, result);
  return result;
}

at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out) {
  if (is_block_quantised(weight)) {
    const at::Tensor result = reference_forced()
                                  ? linear(x, dequantise_blocks(weight, x.size(-1)).to(x.scalar_type()), bias)
                                  : block_linear(x, weight, bias);
    return out.defined() ? out.copy_(result) : result;
  }
  const bool by_group = is_group_quantised(weight);
  if (weight.scalar_type() == at::kChar || by_group) {
    const at::Tensor result = by_group ? group_quantised_linear(x, weight, bias) : int8_linear(x, weight, bias);
    return out.defined() ? out.copy_(result) : result;
  }
  if (weight.scalar_type() == at::kByte) return linear(x, unpack(weight, x.size(-1), x.scalar_type()), bias, out);
  const Variant variant = choose({&x, &weight, &bias});
  const int64_t most = variant == Variant::kCuda ? kMaxProductRows : cpu::kMaxRows;
  const bool uncovered = variant == Variant::kTrained || (variant == Variant::kCuda && x.scalar_type() == at::kFloat);
  if (variant == Variant::kRef || uncovered || x.numel() > most * x.size(-1)) return ref::linear(x, weight, bias, out);
  auto shape = x.sizes().vec();
  shape.back() = weight.size(0);
  at::Tensor result = out.defined() ? out : at::empty(shape, x.options());
  variant == Variant::kCpu ? cpu::linear(x, weight, bias, result) : cuda::linear(x, weight, bias, result);
  return result;
}

at::Tensor rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin, const at::Tensor& out) {
  const Variant variant = choose({&x});
  const bool uncovered = variant == Variant::kTrained || (variant == Variant::kCuda && 2 * cos.size(-1) != x.size(-1));
  if (variant == Variant::kTrained && !out.defined()) return cpu::trained_rope(x, cos, sin);
  if (variant == Variant::kRef || uncovered) return ref::rope(x, cos, sin, out);
  at::Tensor result = or_empty_like(out, x);
  variant == Variant::kCpu ? cpu::rope(x, cos, sin, result) : cuda::rope(x, cos, sin, result);
  return result;
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed,
                     const AttentionOptions& options, const at::Tensor& out) {
  const bool few = q.size(0) * q.size(1) <= cpu::kMaxRows,
             whole = !allowed.defined() && q.size(1) == k.size(2) && !out.defined();
  const bool plain = options.soft_cap == 0 && (options.window == 0 || options.window >= k.size(2));
  if (!few && whole && plain && !reference_forced() && q.is_cpu()) {
    if (q.scalar_type() == at::kFloat) return cpu::sequence_attention(q, k, v, options.scale);
    // Avoids ATen for short heads: it multiplies bf16 blocks one head at a time, which is mostly overhead if heads have
    // few values.
    constexpr int64_t kShortHead = 64;
    if (q.scalar_type() == at::kBFloat16 && q.size(3) <= kShortHead)
      return cpu::sequence_attention(q.to(at::kFloat), k.to(at::kFloat), v.to(at::kFloat), options.scale)
          .to(at::kBFloat16);
  }
  if (!few || choose({&q, &k, &v}) != Variant::kCpu) return ref::attention(q, k, v, allowed, options, out);
  at::Tensor result = or_empty_like(out, q);
  cpu::attention(q, k, v, allowed, options, result);
  return result;
}

at::Tensor diagonal_attention(const at::Tensor& q, const KeysValues& causal, const std::vector<KeysValues>& own,
                              double scale) {
  if (own.empty()) return attention(q, causal.k, causal.v, {}, {.scale = scale});
  if (!reference_forced() && q.is_cpu() && q.scalar_type() == at::kFloat)
    return cpu::diagonal_attention(q, causal, own, scale);
  return ref::diagonal_attention(q, causal, own, scale);
}

at::Tensor silu_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  const Variant variant = choose({&gate, &up});
  if (variant == Variant::kTrained && !out.defined()) return cpu::trained_silu_mul(gate, up);
  if (variant == Variant::kRef || variant == Variant::kTrained) return ref::silu_mul(gate, up, out);
  at::Tensor result = or_empty_like(out, gate);
  variant == Variant::kCpu ? cpu::silu_mul(gate, up, result) : cuda::silu_mul(gate, up, result);
  return result;
}

at::Tensor gelu_tanh_mul(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& out) {
  if (choose({&gate, &up}) != Variant::kCpu) return ref::gelu_tanh_mul(gate, up, out);
  at::Tensor result = or_empty_like(out, gate);
  cpu::gelu_tanh_mul(gate, up, result);
  return result;
}

at::Tensor soft_cap(const at::Tensor& x, double cap, const at::Tensor& out) { return ref::soft_cap(x, cap, out); }

at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) { return ref::add(a, b, out); }

}  // namespace specdec::kernels
