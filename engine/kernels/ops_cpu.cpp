// Implements the CPU variants of matrix products and attention on tensors. bf16 inputs are widened to fp32, and results
// are rounded once at the end.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/team.h"
#include "engine/kernels/tensor_data.h"
#include "engine/kernels/variants.h"

namespace specdec::kernels::cpu {

namespace {

at::Tensor wide(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }
// Returns fp32 memory for a result: `out` itself if it is contiguous fp32, else a new tensor.
at::Tensor result_buffer(const at::Tensor& out) {
  return out.scalar_type() == at::kFloat && out.is_contiguous()
             ? out
             : at::empty(out.sizes(), out.options().dtype(at::kFloat));
}
void deliver(const at::Tensor& buffer, const at::Tensor& out) {
  if (!buffer.is_same(out)) out.copy_(buffer);
}

// Cuts `heads` contiguous matrices [slots, d] into blocks of kBlockSlots slots and returns the blocks' addresses, one
// head after the other.
template <class T>
std::vector<const void*> blocks_of(const at::Tensor& x, int64_t heads, int64_t slots, int64_t d) {
  std::vector<const void*> out;
  for (int64_t head = 0; head < heads; ++head) {
    for (int64_t at = 0; at < slots; at += kBlockSlots) out.push_back(data<T>(x) + (head * slots + at) * d);
  }
  return out;
}

}  // namespace

void linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& out) {
  const at::Tensor in = wide(x), w = weight.contiguous(), buffer = result_buffer(out);
  const int64_t k = x.size(-1), n = weight.size(0), rows = x.numel() / k;
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), 1 + rows * n * k / 131072);
  by_dtype(w, [&]<class T>() {
    run_team(static_cast<int>(threads), [&](const Member& member) {
      const auto [begin, end] = member.part(n, 8);
      kernels<T>().linear(
          {data<float>(in), k, rows, data<T>(w), k, begin, end, data<T>(bias), buffer.data_ptr<float>(), n, false});
    });
  });
  deliver(buffer, out);
}

void attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& allowed,
               const AttentionOptions& options, const at::Tensor& out) {
  const at::Tensor in = wide(q), keys = k.contiguous(), values = v.contiguous(), buffer = result_buffer(out);
  const int64_t batch = q.size(0), queries = q.size(1), heads = q.size(2), d = q.size(3), groups = k.size(1),
                slots = k.size(2);
  const at::Tensor mask = allowed.defined() ? allowed.expand({batch, queries, slots}).contiguous() : at::Tensor();
  const float scale = options.scale != 0 ? static_cast<float>(options.scale) : 1.0f / std::sqrt(static_cast<float>(d));
  std::vector<int32_t> listed;
  std::vector<float> scores(static_cast<size_t>(heads / groups * slots));
  by_dtype(keys, [&]<class T>() {
    const std::vector<const void*> k_blocks = blocks_of<T>(keys, batch * groups, slots, d),
                                   v_blocks = blocks_of<T>(values, batch * groups, slots, d);
    const int64_t blocks = (slots + kBlockSlots - 1) / kBlockSlots;  // per head
    for (int64_t row = 0; row < batch * queries; ++row) {
      int64_t prefix = slots - queries + row % queries + 1;
      listed.clear();
      if (mask.defined()) {
        const bool* m = mask.const_data_ptr<bool>() + row * slots;
        for (prefix = 0; prefix < slots && m[prefix];) ++prefix;
        for (int64_t i = prefix; i < slots; ++i) {
          if (m[i]) listed.push_back(static_cast<int32_t>(i));
        }
      }
      const auto extra = static_cast<int64_t>(listed.size());
      const Visible visible{prefix, listed.data(), extra,
                            options.window != 0 ? std::max<int64_t>(0, prefix + extra - options.window) : 0};
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t query = (row * heads + g * (heads / groups)) * d, first = (row / queries * groups + g) * blocks;
        kernels<T>().attention({data<float>(in) + query,
                                heads * d,
                                1,
                                heads / groups,
                                d,
                                {k_blocks.data() + first},
                                {v_blocks.data() + first},
                                &visible,
                                scale,
                                scores.data(),
                                slots,
                                buffer.data_ptr<float>() + query,
                                static_cast<float>(options.soft_cap)});
      }
    }
  });
  deliver(buffer, out);
}

namespace {

// Splits the n outputs of a packed matrix at multiples of its block size and runs f(begin, end) on the pieces in
// parallel.
template <class F>
void over_outputs(int64_t n, int64_t k, const F& f) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), 1 + n * k / 32768);
  run_team(static_cast<int>(threads), [&](const Member& member) {
    const auto [begin, end] = member.part(n, kPackOutputs);
    f(begin, end);
  });
}

}  // namespace

}  // namespace specdec::kernels::cpu

namespace specdec::kernels {

at::Tensor quantise_int8(const at::Tensor& matrix) {
  if (!matrix.is_cpu()) return quantise_int8(matrix.cpu()).to(matrix.device());
  const at::Tensor from = matrix.to(at::kFloat).contiguous();
  const int64_t n = from.size(0), k = from.size(1);
  const at::Tensor out = at::empty({n, cpu::pack_row_bytes<cpu::Int8>(nullptr, k)}, at::kChar);
  cpu::over_outputs(n, k, [&](int64_t begin, int64_t end) {
    cpu::quantise(from.const_data_ptr<float>(), k, n, begin, end, static_cast<cpu::Int8*>(out.data_ptr()));
  });
  return out;
}

at::Tensor dequantise_int8(const at::Tensor& quantised, int64_t k) {
  if (!quantised.is_cpu()) return dequantise_int8(quantised.cpu(), k).to(quantised.device());
  const int64_t n = quantised.size(0);
  const at::Tensor out = at::empty({n, k}, at::kFloat);
  cpu::over_outputs(n, k, [&](int64_t begin, int64_t end) {
    cpu::dequantise(static_cast<const cpu::Int8*>(quantised.const_data_ptr()), k, n, begin, end, out.data_ptr<float>());
  });
  return out;
}

at::Tensor pack(const at::Tensor& matrix) {
  const at::Tensor from = matrix.contiguous();
  const int64_t n = from.size(0), k = from.size(1);
  at::Tensor out;
  by_dtype(from, [&]<class T>() {
    out = at::empty({n, cpu::pack_row_bytes<cpu::Packed<T>>(nullptr, k)}, at::kByte);
    cpu::over_outputs(n, k, [&](int64_t begin, int64_t end) {
      cpu::pack(data<T>(from), k, n, begin, end, static_cast<cpu::Packed<T>*>(out.data_ptr()));
    });
  });
  return out;
}

at::Tensor unpack(const at::Tensor& packed, int64_t k, at::ScalarType dtype) {
  const int64_t n = packed.size(0);
  const at::Tensor out = at::empty({n, k}, dtype);
  by_dtype(out, [&]<class T>() {
    cpu::over_outputs(n, k, [&](int64_t begin, int64_t end) {
      cpu::unpack(data<cpu::Packed<T>>(packed), k, n, begin, end, static_cast<T*>(out.data_ptr()));
    });
  });
  return out;
}

}  // namespace specdec::kernels
