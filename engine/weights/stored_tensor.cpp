#include "engine/weights/stored_tensor.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"
#include "engine/config/config.h"
#include "engine/kernels/team.h"

namespace specdec::model {

namespace {

constexpr std::pair<const char*, at::ScalarType> kFloatDtypes[] = {
    {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}};

}  // namespace

TensorToWrite to_write(const std::string& name, const at::Tensor& tensor) {
  std::string stored = tensor.scalar_type() == at::kLong ? "I64" : tensor.scalar_type() == at::kBool ? "BOOL" : "";
  for (const auto& [file_name, type] : kFloatDtypes)
    if (type == tensor.scalar_type()) stored = file_name;
  if (stored.empty() || !tensor.is_cpu() || !tensor.is_contiguous())
    throw Error(ErrorKind::kInternal, "tensor " + name + " cannot be written as it is");
  return {
      name, stored, tensor.sizes().vec(), {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

at::Tensor normal_tensor(at::IntArrayRef shape, double deviation, uint64_t seed, uint32_t stream) {
  at::Tensor tensor = at::empty(shape, at::kFloat);
  float* data = tensor.data_ptr<float>();
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), 1 + tensor.numel() / 16384);
  kernels::run_team(static_cast<int>(threads), [&](const kernels::Member& member) {
    const auto [begin, end] = member.part(tensor.numel());
    for (int64_t n = begin; n < end; ++n) {  // Box and Muller 1958; uses one value of each pair
      const auto index = 2 * static_cast<uint64_t>(n);
      const double u = philox_uniform(seed, stream, index), angle = philox_uniform(seed, stream, index + 1);
      data[n] =
          static_cast<float>(deviation * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * angle));
    }
  });
  return tensor;
}

}  // namespace specdec::model
