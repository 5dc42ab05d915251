#include "engine/weights/quantised_reader.h"

#include <ATen/Parallel.h>

#include <array>

#include "engine/kernels/team.h"

namespace specdec::model {

namespace {

using kernels::Packing;
using kernels::QuantisedMatrix;
using Method = Quantisation::Method;

// Reads the stored tensors of one matrix.
class Parts {
 public:
  Parts(const SafetensorsDirectory& files, const std::string& name, std::set<std::string>& unread)
      : files_(files), stem_(name.substr(0, name.size() - std::string("weight").size())), unread_(unread) {}

  bool has(const char* part) const { return files_.contains(stem_ + part); }
  const TensorEntry& entry(const char* part) const { return files_.entry(stem_ + part); }
  std::string where(const char* part) const {
    return files_.file_of(stem_ + part).path().string() + ": tensor " + stem_ + part;
  }

  at::Tensor raw(const char* part, const char* dtype, at::ScalarType type, at::IntArrayRef shape) const {
    if (!has(part)) throw Error(ErrorKind::kModel, "tensor " + stem_ + part + " is missing");
    const TensorEntry& found = entry(part);
    if (found.dtype != dtype)
      throw Error(ErrorKind::kModel, where(part) + " has dtype " + found.dtype + ", expected " + dtype);
    if (at::IntArrayRef(found.shape) != shape)
      throw Error(ErrorKind::kModel, where(part) + " has shape " + c10::str(at::IntArrayRef(found.shape)) +
                                         ", expected " + c10::str(shape));
    at::Tensor out = at::empty(found.shape, type);
    files_.read(stem_ + part, {static_cast<std::byte*>(out.data_ptr()), out.nbytes()});
    unread_.erase(stem_ + part);
    return out;
  }
  // Reads a part that is stored as F32, BF16 or F16, and converts it to fp32.
  at::Tensor numbers(const char* part, at::IntArrayRef shape) const {
    if (!has(part)) throw Error(ErrorKind::kModel, "tensor " + stem_ + part + " is missing");
    for (const auto& [dtype, type] :
         {std::pair{"F32", at::kFloat}, std::pair{"BF16", at::kBFloat16}, std::pair{"F16", at::kHalf}}) {
      if (entry(part).dtype == dtype) return raw(part, dtype, type, shape).to(at::kFloat);
    }
    throw Error(ErrorKind::kModel, where(part) + " has dtype " + entry(part).dtype + ", expected F32, BF16 or F16");
  }

 private:
  const SafetensorsDirectory& files_;
  std::string stem_;
  std::set<std::string>& unread_;
};

// Runs f(begin, end) in parallel over ranges of [0, rows).
template <class F>
void over_outputs(int64_t rows, int64_t columns, const F& f) {
  const int64_t threads = std::min<int64_t>(at::get_num_threads(), 1 + rows * columns / 65536);
  kernels::run_team(static_cast<int>(threads), [&](const kernels::Member& member) {
    const auto [begin, end] = member.part(rows, 8);
    f(begin, end);
  });
}

QuantisedMatrix read_fp8(const Parts& parts, const Quantisation& quantisation, at::IntArrayRef shape) {
  const int64_t rows = shape[0], columns = shape[1];
  const char* scale_name = parts.has("weight_scale_inv") ? "weight_scale_inv" : "weight_scale";
  if (!parts.has(scale_name))
    throw Error(ErrorKind::kModel,
                parts.where("weight") + " is F8_E4M3 and has neither weight_scale nor weight_scale_inv");
  const std::vector<int64_t> found = parts.entry(scale_name).shape;
  const bool one = !quantisation.blocks_bind && c10::multiply_integers(found) == 1,
             by_row = !quantisation.blocks_bind &&
                      (found == std::vector<int64_t>{rows} || found == std::vector<int64_t>{rows, 1});
  const int64_t block_rows = one      ? rows
                             : by_row ? 1
                                      : quantisation.block_rows,
                block_columns = one || by_row ? columns : quantisation.block_columns,
                across = (columns + block_columns - 1) / block_columns, down = (rows + block_rows - 1) / block_rows;
  if (!one && !by_row && found != std::vector<int64_t>{down, across})
    throw Error(ErrorKind::kModel,
                parts.where(scale_name) + " has shape " + c10::str(at::IntArrayRef(found)) + ", expected " +
                    (quantisation.blocks_bind ? "" : "one number, [" + std::to_string(rows) + ", 1] or ") + "[" +
                    std::to_string(down) + ", " + std::to_string(across) + "]");
  const at::Tensor codes = parts.raw("weight", "F8_E4M3", at::kByte, shape),
                   scales = parts.numbers(scale_name, found).view({down, across});
  if (codes.bitwise_and(127).eq(127).any().item<bool>())
    throw Error(ErrorKind::kModel, parts.where("weight") + " holds NaN or infinite values");
  QuantisedMatrix out{Packing::kE4m3,
                      codes,
                      scales.t().repeat_interleave(std::min(block_rows, rows), 1).narrow(1, 0, rows).contiguous(),
                      {},
                      std::vector<int32_t>(static_cast<size_t>(columns))};
  for (int64_t k = 0; k < columns; ++k) out.group[static_cast<size_t>(k)] = static_cast<int32_t>(k / block_columns);
  return out;
}

// The packed codes and zero points of a GPTQ or AWQ matrix, and their scales.
struct Integers {
  at::Tensor weights, zeros, scales;  // qweight, qzeros int32; scales fp32 [groups, N]
  std::vector<int32_t> group;         // the group of each input
};

// Returns the number of inputs that share a scale; the last group may have fewer. The number of rows of scales must
// agree with the group_size of config.json, unless Quantisation::group_size_binds is false.
int64_t group_size_of(const Parts& parts, const Quantisation& quantisation, int64_t inputs, int64_t groups) {
  const int64_t size = quantisation.group_size != 0 ? quantisation.group_size : inputs,
                expected = (inputs + size - 1) / size;
  if (groups == expected) return size;
  if (!quantisation.group_size_binds && inputs % groups == 0) return inputs / groups;
  throw Error(ErrorKind::kModel, parts.where("scales") + " has " + std::to_string(groups) + " groups of " +
                                     std::to_string(inputs) + " inputs, expected " + std::to_string(expected) +
                                     " by the group_size of config.json, " + std::to_string(size) +
                                     ": correct group_size");
}

// Returns the group of each input: as listed in g_idx if the checkpoint has it, else `size` consecutive inputs per
// group.
std::vector<int32_t> groups_of(const Parts& parts, int64_t inputs, int64_t groups, int64_t size) {
  std::vector<int32_t> out(static_cast<size_t>(inputs));
  if (parts.has("g_idx")) {
    const at::Tensor listed = parts.raw("g_idx", "I32", at::kInt, {inputs});
    out.assign(listed.const_data_ptr<int32_t>(), listed.const_data_ptr<int32_t>() + inputs);
  } else {
    for (int64_t k = 0; k < inputs; ++k) out[static_cast<size_t>(k)] = static_cast<int32_t>(k / size);
  }
  for (const int32_t g : out) {
    if (g < 0 || g >= groups)
      throw Error(ErrorKind::kModel, parts.where("qweight") + ": an input belongs to group " + std::to_string(g) +
                                         " of " + std::to_string(groups));
  }
  return out;
}

// Reads codes, zero points, scales and groups of a matrix. `shape` is [outputs, inputs], `packed` is the shape of
// qweight, and each int32 holds `per_number` codes.
Integers read_integers(const Parts& parts, const Quantisation& quantisation, at::IntArrayRef shape,
                       at::IntArrayRef packed, int64_t per_number) {
  const int64_t outputs = shape[0], inputs = shape[1];
  if (!parts.has("scales")) throw Error(ErrorKind::kModel, parts.where("qweight") + " has no scales beside it");
  const std::vector<int64_t>& found = parts.entry("scales").shape;
  if (found.size() != 2 || found[0] < 1 || found[1] != outputs)
    throw Error(ErrorKind::kModel, parts.where("scales") + " has shape " + c10::str(at::IntArrayRef(found)) +
                                       ", expected [groups, " + std::to_string(outputs) + "]");
  const int64_t groups = found[0], size = group_size_of(parts, quantisation, inputs, groups);
  return {parts.raw("qweight", "I32", at::kInt, packed),
          parts.raw("qzeros", "I32", at::kInt, {groups, outputs / per_number}),
          parts.numbers("scales", found).contiguous(), groups_of(parts, inputs, groups, size)};
}

void require_multiple(const Parts& parts, int64_t n, int64_t unit, const char* what) {
  if (n % unit != 0)
    throw Error(ErrorKind::kModel, parts.where("qweight") + ": " + std::to_string(n) + " " + what +
                                       " cannot be packed by " + std::to_string(unit));
}

// Unpacks codes of `bits` bits. Each int32 of `packed` holds one code at each of the bit positions `shifts`. Returns
// uint8 [rows, columns · number of shifts].
at::Tensor unpacked(const at::Tensor& packed, at::IntArrayRef shifts, int64_t bits) {
  const int64_t rows = packed.size(0), columns = packed.size(1), mask = (int64_t{1} << bits) - 1;
  const auto per_number = static_cast<int64_t>(shifts.size());
  const at::Tensor out = at::empty({rows, columns * per_number}, at::kByte);
  const auto* from = packed.const_data_ptr<int32_t>();
  auto* to = out.data_ptr<uint8_t>();
  over_outputs(rows, columns * per_number, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin * columns; i < end * columns; ++i)
      for (int64_t j = 0; j < per_number; ++j)
        to[i * per_number + j] =
            static_cast<uint8_t>(static_cast<uint32_t>(from[i]) >> shifts[static_cast<size_t>(j)] & mask);
  });
  return out;
}

QuantisedMatrix read_gptq(const Parts& parts, const Quantisation& quantisation, at::IntArrayRef shape) {
  const int64_t outputs = shape[0], inputs = shape[1], bits = quantisation.bits, per_number = 32 / bits;
  require_multiple(parts, inputs, per_number, "inputs"), require_multiple(parts, outputs, per_number, "outputs");
  Integers q = read_integers(parts, quantisation, shape, {inputs / per_number, outputs}, per_number);
  std::vector<int64_t> shifts;
  for (int64_t i = 0; i < per_number; ++i) shifts.push_back(i * bits);
  return {.packing = bits == 4 ? Packing::kCodes4 : Packing::kCodes8,
          .codes = unpacked(q.weights.t().contiguous(), shifts, bits),
          .scales = q.scales,
          .zeros = unpacked(q.zeros, shifts, bits).add_(quantisation.zero_offset).bitwise_and_((1 << bits) - 1),
          .group = std::move(q.group)};
}

QuantisedMatrix read_awq(const Parts& parts, const Quantisation& quantisation, at::IntArrayRef shape) {
  constexpr std::array<int64_t, 8> kShifts = {0, 16, 4, 20, 8, 24, 12, 28};  // shift of output n is kShifts[n % 8]
  constexpr auto kPerNumber = static_cast<int64_t>(kShifts.size());
  const int64_t outputs = shape[0], inputs = shape[1], width = outputs / kPerNumber;
  require_multiple(parts, outputs, kPerNumber, "outputs");
  Integers q = read_integers(parts, quantisation, shape, {inputs, width}, kPerNumber);
  return {.packing = Packing::kCodes4,
          .codes = unpacked(q.weights, kShifts, 4).t().contiguous(),
          .scales = q.scales,
          .zeros = unpacked(q.zeros, kShifts, 4),
          .group = std::move(q.group)};
}

}  // namespace

std::optional<QuantisedMatrix> read_quantised(const SafetensorsDirectory& files, const Quantisation& quantisation,
                                              const std::string& name, at::IntArrayRef shape,
                                              std::set<std::string>& unread) {
  if (quantisation.method == Method::kNone || shape.size() != 2 || !name.ends_with(".weight")) return {};
  const Parts parts(files, name, unread);
  const bool fp8 = quantisation.method == Method::kFp8;
  if (fp8 ? !parts.has("weight") || parts.entry("weight").dtype != "F8_E4M3" : !parts.has("qweight")) return {};
  QuantisedMatrix out = fp8                                    ? read_fp8(parts, quantisation, shape)
                        : quantisation.method == Method::kGptq ? read_gptq(parts, quantisation, shape)
                                                               : read_awq(parts, quantisation, shape);
  if (!out.scales.isfinite().all().item<bool>())
    throw Error(ErrorKind::kModel, "tensor " + name + " holds NaN or infinite values: its scales are not finite");
  return out;
}

void require_quantised(const SafetensorsDirectory& files, const Quantisation& quantisation) {
  if (quantisation.method == Method::kGguf && !files.gguf())
    throw Error(
        ErrorKind::kModel,
        "config.json: quantization_config says gguf, but the weights are safetensors: remove it if these are the "
        "model's weights, else give the .gguf file");
  if (quantisation.method == Method::kNone || quantisation.method == Method::kGguf) return;
  const bool fp8 = quantisation.method == Method::kFp8;
  for (const std::string& name : files.names())
    if (fp8 ? files.entry(name).dtype == "F8_E4M3" : name.ends_with(".qweight")) return;
  const std::string method = fp8 ? "fp8" : quantisation.method == Method::kGptq ? "gptq" : "awq";
  throw Error(ErrorKind::kModel, "config.json: quantization_config says " + method +
                                     ", but the weights are plain: no tensor is " +
                                     (fp8 ? "F8_E4M3" : "named ….qweight") +
                                     ": remove quantization_config if these are the model's weights, else fetch the "
                                     "quantised ones");
}

void drop_unneeded(const SafetensorsDirectory& files, const Quantisation& quantisation, std::set<std::string>& unread) {
  if (quantisation.method == Method::kNone) return;
  std::erase_if(unread, [&](const std::string& name) {
    if (quantisation.method == Method::kFp8) {
      for (const char* scale :
           {".input_scale", ".input_global_scale", ".k_scale", ".v_scale", ".q_scale", ".output_scale"}) {
        if (name.ends_with(scale)) return true;
      }
    }
    if (quantisation.method != Method::kGptq || !name.ends_with(".bias") ||
        !files.contains(name.substr(0, name.size() - 4) + "qweight"))
      return false;
    const TensorEntry& entry = files.entry(name);
    std::vector<std::byte> bytes(entry.bytes);
    files.read(name, bytes);
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; });
  });
}

}  // namespace specdec::model
