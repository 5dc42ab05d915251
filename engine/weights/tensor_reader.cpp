#include "engine/weights/tensor_reader.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "base/error.h"
#include "engine/config/config.h"

namespace specdec::model {

namespace {

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

// Throws unless all converted values are finite. Conversion never makes a non-finite value finite. So the values before
// conversion are checked only to choose the message: not finite, or out of range.
void require_finite(const at::Tensor& converted, const at::Tensor& before, const std::string& what) {
  if (all_finite(converted)) return;
  if (!all_finite(before.contiguous())) throw Error(ErrorKind::kModel, what + " holds NaN or infinite values");
  throw Error(ErrorKind::kModel,
              what + " does not fit " + dtype_name(converted.scalar_type()) + ": use a wider --dtype");
}

// Returns a tensor in the buffer `bytes`, which is enlarged if necessary.
at::Tensor room_in(at::Tensor& bytes, at::IntArrayRef shape, at::ScalarType dtype, bool pinned) {
  const int64_t needed = c10::multiply_integers(shape) * static_cast<int64_t>(c10::elementSize(dtype));
  if (!bytes.defined() || bytes.numel() < needed)
    bytes = at::empty({needed}, at::TensorOptions(at::kByte).pinned_memory(pinned));
  return bytes.narrow(0, 0, needed).view(dtype).view(shape);
}

// A stored tensor that was found and has the expected shape.
struct Found {
  const TensorEntry& entry;
  const InputFile& file;
  at::ScalarType dtype;
  std::string where;
};
Found look_up(const SafetensorsDirectory& files, const std::string& name, at::IntArrayRef shape) {
  if (!files.contains(name)) throw Error(ErrorKind::kModel, "tensor " + name + " is missing");
  const TensorEntry& entry = files.entry(name);
  const InputFile& file = files.file_of(name);
  const std::string where = file.path().string() + ": tensor " + name;
  if (at::IntArrayRef(entry.shape) != shape)
    throw Error(ErrorKind::kModel, where + " has shape " + c10::str(at::IntArrayRef(entry.shape)) +
                                       ", config.json asks for " + c10::str(shape));
  for (const auto& [stored, dtype] :
       {std::pair{"F32", at::kFloat}, std::pair{"BF16", at::kBFloat16}, std::pair{"F16", at::kHalf}})
    if (entry.dtype == stored) return {entry, file, dtype, where};
  const bool eight_bits = entry.dtype.starts_with("F8");
  throw Error(
      ErrorKind::kModel,
      where + " has dtype " + entry.dtype + "; supported: F32, BF16, F16" +
          (eight_bits ? "; F8_E4M3 with a quantization_config of quant_method fp8 or compressed-tensors in config.json"
                      : ""));
}

}  // namespace

at::Tensor converted(const at::Tensor& tensor, at::ScalarType dtype, const std::string& what) {
  at::Tensor out = tensor.to(dtype);
  require_finite(out, tensor, what);
  return out;
}

TensorReader::TensorReader(const SafetensorsDirectory& files, at::Device device, const Options& options)
    : files_(files), device_(device), options_(options) {
  options_.staged |= !device.is_cpu();
}

void TensorReader::read(const std::string& name, at::IntArrayRef shape, const StoredPart& part, const at::Tensor& out) {
  const Found found = look_up(files_, name, shape);
  const c10::DeviceGuard guard(device_);
  const int64_t width = shape.empty() ? 1 : c10::multiply_integers(shape.slice(1)),
                row_bytes = width * static_cast<int64_t>(c10::elementSize(found.dtype)),
                step = std::max<int64_t>(1, options_.piece_bytes / std::max<int64_t>(1, row_bytes));
  const bool as_stored = found.dtype == out.scalar_type() && part.columns == width;
  const at::Tensor rows = out.view({part.rows, part.columns});
  for (int64_t row = 0; row < part.rows; row += step) {
    const int64_t count = std::min(step, part.rows - row);
    const at::Tensor place = rows.narrow(0, row, count),
                     piece = options_.staged ? stage(place.sizes(), out.scalar_type()) : place,
                     stored = as_stored ? piece : room_in(unconverted_, {count, width}, found.dtype, /*pinned=*/false);
    const at::Tensor kept = stored.narrow(1, as_stored ? 0 : part.column, part.columns);
    found.file.read(found.entry.offset + static_cast<uint64_t>((part.row + row) * row_bytes),
                    {static_cast<std::byte*>(stored.mutable_data_ptr()), stored.nbytes()});
    bytes_read_ += static_cast<int64_t>(stored.nbytes());
    if (!as_stored) piece.copy_(kept);
    require_finite(piece, kept, found.where);
    if (options_.staged) send(piece, place);
  }
}

at::Tensor TensorReader::read(const std::string& name, at::IntArrayRef shape, at::ScalarType dtype) {
  at::Tensor out = at::empty(shape, at::TensorOptions(device_).dtype(dtype));
  const int64_t rows = shape.empty() ? 1 : shape[0];
  read(name, shape, {.rows = rows, .columns = rows > 0 ? out.numel() / rows : 0}, out);
  return out;
}

// Returns the next staging buffer. Waits first until the device has finished the last copy from this buffer.
at::Tensor TensorReader::stage(at::IntArrayRef shape, at::ScalarType dtype) {
  current_ = (current_ + 1) % stages_.size();
  Stage& next = stages_[current_];
  if (next.sent) next.sent->synchronize();
  return room_in(next.bytes, shape, dtype, device_.is_cuda());
}

void TensorReader::send(const at::Tensor& piece, const at::Tensor& out) {
  out.copy_(piece, /*non_blocking=*/true);
  if (device_.is_cpu()) return;
  Stage& used = stages_[current_];
  if (!used.sent) used.sent.emplace(device_.type(), c10::EventFlag::BACKEND_DEFAULT);
  used.sent->record(c10::impl::VirtualGuardImpl(device_.type()).getStream(device_));
}

}  // namespace specdec::model
