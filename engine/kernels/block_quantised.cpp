#include "engine/kernels/block_quantised.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "base/error.h"
#include "engine/kernels/cpu/block_matrix.h"
#include "engine/kernels/team.h"

namespace specdec::kernels {

namespace {

using cpu::BlockKind;

constexpr std::pair<std::string_view, BlockKind> kKinds[] = {
    {"Q4_0", BlockKind::kQ4_0}, {"Q4_1", BlockKind::kQ4_1}, {"Q5_0", BlockKind::kQ5_0}, {"Q5_1", BlockKind::kQ5_1},
    {"Q8_0", BlockKind::kQ8_0}, {"Q4_K", BlockKind::kQ4_K}, {"Q5_K", BlockKind::kQ5_K}, {"Q6_K", BlockKind::kQ6_K}};

// Number of rows whose inputs are kept as bytes while the weights of a block are in a cache.
constexpr int64_t kRowsAtOnce = 128;

void require_inputs(const at::Tensor& weight, BlockKind kind, int64_t k) {
  if (k != weight.size(1) * cpu::block_super_inputs(kind))
    throw Error(ErrorKind::kInternal, "a block-quantised matrix does not have " + std::to_string(k) + " inputs");
}

// Runs f(begin, end) in parallel over ranges of outputs that consist of whole blocks.
template <class F>
void over_outputs(int64_t n, int64_t k, const F& f) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), 1 + n * k / 65536);
  run_team(static_cast<int>(threads), [&](const Member& member) {
    const auto [begin, end] = member.part(n, cpu::kPackOutputs);
    if (begin < end) f(begin, end);
  });
}

}  // namespace

std::optional<BlockKind> block_kind(std::string_view name) {
  for (const auto& [known, kind] : kKinds)
    if (known == name) return kind;
  return {};
}

BlockKind block_kind_of(const at::Tensor& weight) {
  for (const auto& [name, kind] : kKinds)
    if (weight.dim() == 3 && weight.size(2) == cpu::block_super_bytes(kind)) return kind;
  throw Error(ErrorKind::kInternal, "a block-quantised matrix has no known kind");
}

std::vector<int64_t> block_shape(BlockKind kind, int64_t n, int64_t k) {
  return {cpu::block_outputs(n), k / cpu::block_super_inputs(kind), cpu::block_super_bytes(kind)};
}

at::Tensor pack_blocks(BlockKind kind, const uint8_t* rows, const std::vector<int64_t>& order, int64_t n, int64_t k,
                       const at::Tensor& memory) {
  std::atomic<bool> finite{true};
  over_outputs(n, k, [&](int64_t begin, int64_t end) {
    if (!cpu::pack_blocks(kind, rows, order.empty() ? nullptr : order.data(), k, n, begin, end,
                          static_cast<cpu::Blocks*>(memory.mutable_data_ptr())))
      finite = false;
  });
  return finite ? memory.narrow(0, 0, n) : at::Tensor();
}

at::Tensor block_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  const int64_t k = x.size(-1), n = weight.size(0);
  const BlockKind kind = block_kind_of(weight);
  require_inputs(weight, kind, k);
  auto shape = x.sizes().vec();
  shape.back() = n;
  const at::Tensor in = x.to(at::kFloat).contiguous(), out = at::empty(shape, in.options()),
                   offset = bias.defined() ? bias.to(at::kFloat).contiguous() : bias;
  const int64_t rows = in.numel() / k, groups = k / cpu::kBlockInputs, most = std::min<int64_t>(rows, kRowsAtOnce);
  over_outputs(n, k * rows, [&](int64_t begin, int64_t end) {
    thread_local std::vector<cpu::SplitInputs> split;
    split.resize(static_cast<size_t>(most * groups));
    for (int64_t first = 0; first < rows; first += most)
      cpu::kernels<float>().linear_blocks({.x = in.const_data_ptr<float>() + first * k,
                                           .ldx = k,
                                           .rows = std::min(most, rows - first),
                                           .w = static_cast<const cpu::Blocks*>(weight.const_data_ptr()),
                                           .k = k,
                                           .n_begin = begin,
                                           .n_end = end,
                                           .bias = offset.defined() ? offset.const_data_ptr<float>() : nullptr,
                                           .out = out.data_ptr<float>() + first * n,
                                           .ldo = n,
                                           .add = false,
                                           .n = n,
                                           .split = split.data(),
                                           .kind = kind});
  });
  return out.to(x.scalar_type());
}

at::Tensor dequantise_blocks(const at::Tensor& weight, int64_t k) {
  const int64_t n = weight.size(0);
  const BlockKind kind = block_kind_of(weight);
  require_inputs(weight, kind, k);
  const at::Tensor out = at::empty({n, k}, at::kFloat);
  over_outputs(n, k, [&](int64_t begin, int64_t end) {
    cpu::unpack_blocks(kind, static_cast<const cpu::Blocks*>(weight.const_data_ptr()), k, begin, end,
                       out.data_ptr<float>() + begin * k);
  });
  return out;
}

}  // namespace specdec::kernels
