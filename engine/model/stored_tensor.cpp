#include "engine/model/stored_tensor.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/philox.h"
#include "engine/kernels/team.h"
#include "engine/model/config.h"

namespace specdec::model {

namespace {

constexpr std::pair<const char*, at::ScalarType> kFloatDtypes[] = {
    {"F32", at::kFloat}, {"BF16", at::kBFloat16}, {"F16", at::kHalf}};

template <class Bits>
bool no_exponent_full(const at::Tensor& tensor, Bits exponent) {
  const auto* bits = static_cast<const Bits*>(tensor.const_data_ptr());
  bool finite = true;
  for (int64_t i = 0; i < tensor.numel(); ++i) finite &= (bits[i] & exponent) != exponent;
  return finite;
}
bool all_finite(const at::Tensor& tensor) {  // NaN and infinity have all exponent bits set
  if (tensor.scalar_type() == at::kFloat) return no_exponent_full<uint32_t>(tensor, 0x7f800000u);
  return no_exponent_full<uint16_t>(tensor, tensor.scalar_type() == at::kHalf ? 0x7c00 : 0x7f80);
}

}  // namespace

at::Tensor converted(const at::Tensor& tensor, at::ScalarType dtype, const std::string& what) {
  if (!all_finite(tensor)) throw Error(ErrorKind::kModel, what + " holds NaN or infinite values");
  at::Tensor out = tensor.to(dtype);
  if (!all_finite(out))
    throw Error(ErrorKind::kModel, what + " does not fit " + dtype_name(dtype) + ": use a wider --dtype");
  return out;
}

at::Tensor read_tensor(const SafetensorsDirectory& files, const std::string& name, at::IntArrayRef shape,
                       at::ScalarType dtype) {
  if (!files.contains(name)) throw Error(ErrorKind::kModel, "tensor " + name + " is missing");
  const TensorEntry& entry = files.entry(name);
  const std::string where = files.shard_of(name).file().path().string() + ": tensor " + name;
  if (at::IntArrayRef(entry.shape) != shape)
    throw Error(ErrorKind::kModel, where + " has shape " + c10::str(at::IntArrayRef(entry.shape)) +
                                       ", config.json asks for " + c10::str(shape));
  for (const auto& [stored, type] : kFloatDtypes) {
    if (entry.dtype != stored) continue;
    at::Tensor tensor = at::empty(shape, type);
    files.read(name, {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()});
    return converted(tensor, dtype, where);
  }
  const bool eight_bits = entry.dtype.starts_with("F8");
  throw Error(
      ErrorKind::kModel,
      where + " has dtype " + entry.dtype + "; supported: F32, BF16, F16" +
          (eight_bits ? "; F8_E4M3 with a quantization_config of quant_method fp8 or compressed-tensors in config.json"
                      : ""));
}

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
