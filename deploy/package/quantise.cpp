#include "deploy/package/quantise.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "base/file.h"
#include "base/output_directory.h"
#include "base/safetensors.h"
#include "base/schema/binding.h"
#include "base/schema/draft_kind.h"
#include "base/small_float.h"
#include "base/version.h"
#include "deploy/package/checks.h"

namespace specdec::deploy {

namespace {

constexpr float kLargestE4m3 = 448, kLargestInt8 = 127;
constexpr int64_t kPerWord = 4;  // four 8-bit integers are packed into one I32

// Encodes |x| <= 448 as E4M3, rounded to nearest, ties to even: 4 exponent bits with bias 7, 3 mantissa bits, no
// infinities.
uint8_t encode_e4m3(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = bits >> 24 & 0x80;
  const float size = std::fabs(x);
  if (size < 0x1p-6f)
    // Subnormals are multiples of 2^-9; the smallest normal number is 8 · 2^-9.
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(size * 0x1p9f)));
  const uint32_t rounded = std::bit_cast<uint32_t>(size) + 0x7ffff + (bits >> 20 & 1);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

// Returns the smallest fp16 value that is at least `x` and at least 2^-24, for 0 <= x <= 65504. A scale that was
// rounded down would push the largest weight out of the int8 range.
uint16_t fp16_not_below(float x) {
  if (x < 0x1p-14f) return static_cast<uint16_t>(std::max(1.0f, std::ceil(x * 0x1p24f)));
  return static_cast<uint16_t>(((std::bit_cast<uint32_t>(x) + 0x1fff) >> 13) - (112u << 10));
}

std::vector<float> read_floats(const SafetensorsDirectory& files, const std::string& name) {
  const TensorEntry& entry = files.entry(name);
  std::vector<std::byte> bytes(entry.bytes);
  files.read(name, bytes);
  const size_t width = static_cast<size_t>(dtype_bytes(entry.dtype)), count = bytes.size() / width;
  std::vector<float> out(count);
  if (entry.dtype == "F32") {
    std::memcpy(out.data(), bytes.data(), bytes.size());
  } else {
    for (size_t i = 0; i < count; ++i) {
      uint16_t half;
      std::memcpy(&half, bytes.data() + 2 * i, 2);
      out[i] = entry.dtype == "F16" ? fp16_to_float(half) : bf16_to_float(half);
    }
  }
  for (const float value : out)
    if (!std::isfinite(value))
      throw Error(ErrorKind::kModel,
                  files.file_of(name).path().string() + ": tensor " + name + " holds a NaN or an infinity");
  return out;
}

// Collects the tensors of one output weight file, with their bytes.
class Shard {
 public:
  template <class T>
  void add(const std::string& name, const char* dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
    const auto bytes = std::as_bytes(std::span(values));
    add_bytes(name, dtype, std::move(shape), {bytes.begin(), bytes.end()});
  }
  void add_bytes(const std::string& name, const std::string& dtype, std::vector<int64_t> shape,
                 std::vector<std::byte> bytes) {
    tensors_.push_back({name, dtype, std::move(shape), {}});
    bytes_.push_back(std::move(bytes));
  }
  void write(const fs::path& path) {
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].data = bytes_[i];
    write_safetensors(path, tensors_);
  }
  const std::vector<TensorToWrite>& tensors() const { return tensors_; }

 private:
  std::vector<TensorToWrite> tensors_;
  std::vector<std::vector<std::byte>> bytes_;
};

struct SquaredError {
  double error = 0, size = 0;
  void add(float wanted, float got) {
    error += (double{wanted} - got) * (double{wanted} - got);
    size += double{wanted} * wanted;
  }
};

// A view of a weight to quantise, row-major [rows, columns] = [outputs, inputs].
struct Matrix {
  const std::vector<float>& values;
  int64_t rows, columns;
  const float* row(int64_t n) const { return values.data() + n * columns; }
};

void add_fp8(Shard& shard, const std::string& name, const Matrix& w, SquaredError& error) {
  const int64_t rows = w.rows, columns = w.columns;
  std::vector<uint8_t> codes(w.values.size());
  std::vector<float> scales(static_cast<size_t>(rows));
  float values[256];
  for (int code = 0; code < 256; ++code) values[code] = e4m3_to_float(static_cast<uint8_t>(code));
  for (int64_t n = 0; n < rows; ++n) {
    const float* row = w.row(n);
    float largest = 0;
    for (int64_t k = 0; k < columns; ++k) largest = std::max(largest, std::fabs(row[k]));
    const float scale = scales[static_cast<size_t>(n)] = largest > 0 ? std::max(largest / kLargestE4m3, 0x1p-126f) : 1;
    for (int64_t k = 0; k < columns; ++k) {
      const uint8_t code = codes[static_cast<size_t>(n * columns + k)] =
          encode_e4m3(std::clamp(row[k] / scale, -kLargestE4m3, kLargestE4m3));
      error.add(row[k], values[code] * scale);
    }
  }
  shard.add(name, "F8_E4M3", {rows, columns}, codes);
  shard.add(name + "_scale", "F32", {rows, 1}, scales);
}

// All zero points are 128. The "gptq" checkpoint format (version 1) stores zero points minus one, so 0x7f is written.
void add_int8(Shard& shard, const std::string& name, const Matrix& w, int64_t group, SquaredError& error) {
  const int64_t rows = w.rows, columns = w.columns;
  const int64_t groups = columns / group;
  std::vector<uint32_t> packed(static_cast<size_t>(columns / kPerWord * rows)),
      zeros(static_cast<size_t>(groups * rows / kPerWord), 0x7f7f7f7fu);
  std::vector<uint16_t> scales(static_cast<size_t>(groups * rows));
  std::vector<int32_t> group_of(static_cast<size_t>(columns));
  for (int64_t k = 0; k < columns; ++k) group_of[static_cast<size_t>(k)] = static_cast<int32_t>(k / group);
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t g = 0; g < groups; ++g) {
      const float* part = w.row(n) + g * group;
      float largest = 0;
      for (int64_t k = 0; k < group; ++k) largest = std::max(largest, std::fabs(part[k]));
      const uint16_t stored = scales[static_cast<size_t>(g * rows + n)] =
          fp16_not_below(std::min(largest / kLargestInt8, 65504.0f));
      const float scale = fp16_to_float(stored);
      for (int64_t k = 0; k < group; ++k) {
        const float q = std::clamp(std::nearbyint(part[k] / scale), -kLargestInt8, kLargestInt8);
        const int64_t input = g * group + k;
        packed[static_cast<size_t>(input / kPerWord * rows + n)] |= static_cast<uint32_t>(static_cast<int>(q) + 128)
                                                                    << (8 * (input % kPerWord));
        error.add(part[k], q * scale);
      }
    }
  }
  const std::string stem = name.substr(0, name.size() - std::strlen("weight"));
  shard.add(stem + "qweight", "I32", {columns / kPerWord, rows}, packed);
  shard.add(stem + "qzeros", "I32", {groups, rows / kPerWord}, zeros);
  shard.add(stem + "scales", "F16", {groups, rows}, scales);
  shard.add(stem + "g_idx", "I32", {columns}, group_of);
}

class Quantiser {
 public:
  Quantiser(const fs::path& draft, const std::string& format)
      : draft_(draft),
        file_((draft / "config.json").string()),
        format_(format),
        config_(read_json(draft / "config.json", ErrorKind::kModel)),
        files_(draft) {
    if (!config_.is_object()) throw Error(ErrorKind::kModel, file_ + ": expected an object");
    if (const DraftKind kind = kind_of_draft(draft); kind != DraftKind::kModel)
      refuse(std::string(name_of(kind)) + "; expected a draft that is a model of its own");
    if (config_.contains("quantization_config") && !config_["quantization_config"].is_null())
      refuse("quantised already (quantization_config); start from the 16- or 32-bit draft");
    for (const char* key : {"num_experts", "num_local_experts"})
      if (config_.contains(key) && !config_[key].is_null())
        refuse(std::string("a mixture of experts (") + key + "); expected a dense draft");
    for (const std::string& name : files_.names())
      if (is_matrix(name)) matrices_.insert(name), require_packable(name);
    if (matrices_.empty()) refuse("no matrix *.layers.*_proj.weight to quantise");
    for (const int64_t size : {128, 64, 32})
      if (group_ == 0 && std::all_of(matrices_.begin(), matrices_.end(),
                                     [&](const std::string& name) { return files_.entry(name).shape[1] % size == 0; }))
        group_ = size;
  }

  // Writes the weight files, config.json and the draft's other files except README.md.
  QuantisedDraft write(const fs::path& out, const ProgressFn& progress) {
    QuantisedDraft result;
    Json map = Json::object();
    uint64_t total_size = 0;
    std::map<std::string, std::vector<std::string>> shards;  // file name → tensors
    for (const std::string& name : files_.names())
      shards[files_.file_of(name).path().filename().string()].push_back(name);
    for (const auto& [file, names] : shards) {
      Shard shard;
      for (const std::string& name : names) {
        if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal: nothing was published");
        add(shard, name);
        if (progress)
          progress({"quantise", static_cast<double>(++done_), static_cast<double>(files_.names().size()), "tensors",
                    format_});
      }
      shard.write(out / file);
      for (const TensorToWrite& t : shard.tensors()) map[t.name] = file, total_size += t.data.size();
      result.bytes_before += InputFile(draft_ / file, ErrorKind::kModel).size();
      result.bytes_after += fs::file_size(out / file);
    }
    for (const std::string& name : model_files(draft_)) {
      if (shards.count(name) || name == "README.md" || name == "specdec.json" || name == "config.json" ||
          name == "model.safetensors.index.json")
        continue;
      copy_regular_file(draft_ / name, out / name, ErrorKind::kModel);
    }
    if (!shards.count("model.safetensors"))
      write_file_atomic(out / "model.safetensors.index.json",
                        Json{{"metadata", {{"total_size", total_size}}}, {"weight_map", map}}.dump(2) + "\n");
    Json config = config_;
    config["quantization_config"] = quantisation_config();
    write_file_atomic(out / "config.json", config.dump(2) + "\n");
    result.relative_error = error_.size > 0 ? std::sqrt(error_.error / error_.size) : 0;
    if (auto binding = read_binding(draft_)) {
      binding->training["quantised"] = {
          {"format", format_}, {"relative_error", result.relative_error}, {"tool_version", kToolVersion}};
      write_file_atomic(out / "specdec.json", to_json(*binding).dump(2) + "\n");
    }
    return result;
  }

 private:
  [[noreturn]] void refuse(const std::string& found) const { throw Error(ErrorKind::kModel, file_ + ": " + found); }

  static bool is_matrix(const std::string& name) {
    return name.find("layers.") != std::string::npos && name.ends_with("_proj.weight");
  }

  void require_packable(const std::string& name) const {
    const TensorEntry& entry = files_.entry(name);
    const std::string where = files_.file_of(name).path().string() + ": tensor " + name;
    if (entry.shape.size() != 2)
      throw Error(ErrorKind::kModel, where + " has " + std::to_string(entry.shape.size()) + " dimensions, expected 2");
    if (entry.dtype != "F32" && entry.dtype != "BF16" && entry.dtype != "F16")
      throw Error(ErrorKind::kModel, where + " has dtype " + entry.dtype + ", expected F32, BF16 or F16");
    if (entry.shape[0] == 0 || entry.shape[1] == 0 ||
        (format_ == "int8" && (entry.shape[0] % kPerWord || entry.shape[1] % kPerWord)))
      throw Error(ErrorKind::kModel, where + " is " + std::to_string(entry.shape[0]) + " x " +
                                         std::to_string(entry.shape[1]) +
                                         ": int8 packs four inputs and four outputs; use fp8");
  }

  void add(Shard& shard, const std::string& name) {
    const TensorEntry& entry = files_.entry(name);
    if (!matrices_.count(name)) {
      std::vector<std::byte> bytes(entry.bytes);
      files_.read(name, bytes);
      return shard.add_bytes(name, entry.dtype, entry.shape, std::move(bytes));
    }
    const std::vector<float> values = read_floats(files_, name);
    const Matrix w{.values = values, .rows = entry.shape[0], .columns = entry.shape[1]};
    if (format_ == "fp8")
      add_fp8(shard, name, w, error_);
    else
      add_int8(shard, name, w, group_ > 0 ? group_ : w.columns, error_);
  }

  Json quantisation_config() const {
    if (format_ == "int8")
      return {{"quant_method", "gptq"},     {"bits", 8},   {"group_size", group_ > 0 ? group_ : -1},
              {"desc_act", false},          {"sym", true}, {"lm_head", false},
              {"checkpoint_format", "gptq"}};
    const Json weights = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", "channel"}, {"symmetric", true}, {"dynamic", false}};
    const Json inputs = {
        {"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"symmetric", true}, {"dynamic", true}};
    return {{"quant_method", "compressed-tensors"},
            {"format", "float-quantized"},
            {"quantization_status", "compressed"},
            {"ignore", {"lm_head"}},
            {"config_groups",
             {{"group_0",
               {{"targets", {"Linear"}},
                {"weights", weights},
                {"input_activations", inputs},
                {"output_activations", nullptr}}}}}};
  }

  fs::path draft_;
  std::string file_, format_;
  Json config_;
  SafetensorsDirectory files_;
  std::set<std::string> matrices_;
  int64_t group_ = 0;  // inputs per int8 scale; 0: one scale per row
  SquaredError error_;
  size_t done_ = 0;
};

}  // namespace

const std::vector<std::string>& known_quantisations() {
  static const std::vector<std::string> kFormats = {"fp8", "int8"};
  return kFormats;
}

void require_known_quantisation(const std::string& format) {
  const auto& known = known_quantisations();
  if (std::find(known.begin(), known.end(), format) == known.end())
    throw Error(ErrorKind::kUsage, "quantised format '" + format.substr(0, 64) + "': expected fp8 or int8");
}

QuantisedDraft quantise_draft(const fs::path& draft, const std::string& format, const fs::path& out,
                              const ProgressFn& progress) {
  require_known_quantisation(format);
  // A draft that this command wrote cannot be told from one that another tool quantised, so an existing directory is
  // never replaced.
  const OutputRule rule{.flag = "--out", .command = "specdec package quantise", .results = {}};
  check_output_directory(out, rule);
  Quantiser quantiser(draft, format);
  if (::rmdir(out.c_str()) != 0 && errno != ENOENT)
    throw Error(ErrorKind::kUsage, "--out " + out.string() + ": cannot be replaced (" + std::strerror(errno) +
                                       "): give the name of a new directory");
  QuantisedDraft result;
  if (!publish_directory(out, [&](const fs::path& tmp) { result = quantiser.write(tmp, progress); }))
    throw Error(ErrorKind::kIo, "--out " + out.string() + ": another process made it meanwhile");
  return result;
}

}  // namespace specdec::deploy
