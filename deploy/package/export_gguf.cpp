#include "deploy/package/export_gguf.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <set>

#include "base/file.h"
#include "base/gguf/blocks.h"
#include "base/gguf/export_config.h"
#include "base/gguf/export_family.h"
#include "base/gguf/export_tensors.h"
#include "base/gguf/export_tokenizer.h"
#include "base/gguf/gguf_writer.h"
#include "base/hub_cache.h"
#include "base/json.h"
#include "base/safetensors.h"
#include "base/small_float.h"

namespace specdec::deploy {

namespace {

// llama.cpp's numbers of general.file_type (llama.h, enum llama_ftype), and ggml's names of the types.
struct FileType {
  const char *name, *stored;
  uint32_t number;
};
constexpr FileType kFileTypes[] = {
    {"f32", "F32", 0}, {"f16", "F16", 1}, {"bf16", "BF16", 32}, {"q8_0", "Q8_0", 7}, {"q4_0", "Q4_0", 2}};

constexpr int64_t kPieceValues = 1 << 20;  // values that are converted at once

const FileType& file_type(const std::string& name) {
  return *std::ranges::find_if(kFileTypes, [&](const FileType& type) { return name == type.name; });
}

// The tokenizer.json of a large vocabulary has two million values.
constexpr JsonLimits kTokenizerLimits{.max_bytes = 256u << 20, .max_values = size_t{1} << 23};

Json read_optional(const fs::path& file) {
  return fs::exists(file) ? read_json(file, ErrorKind::kModel) : Json::object();
}

gguf::TokenizerFiles read_tokenizer(const fs::path& model, const Json& config) {
  gguf::TokenizerFiles files;
  files.where = (model / "tokenizer.json").string();
  files.tokenizer = read_json(model / "tokenizer.json", ErrorKind::kModel, kTokenizerLimits);
  files.tokenizer_config = read_optional(model / "tokenizer_config.json");
  files.generation_config = read_optional(model / "generation_config.json");
  files.config = config;
  if (const fs::path file = model / "chat_template.jinja"; fs::exists(file))
    files.chat_template = read_file(file, 4u << 20, ErrorKind::kModel);
  return files;
}

// Returns the name for general.name. llama.cpp recognises Phi-3 by it, and then expects the tokens of Phi-3.
std::string general_name(const GgufOptions& options, const gguf::ExportedTokenizer& tokenizer) {
  std::string name = options.name.empty() ? model_name(options.model) : options.name, lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const bool says_phi3 = lower.find("phi-3") != std::string::npos || lower.find("phi3") != std::string::npos;
  if (tokenizer.strips_spaces && tokenizer.has_phi3_tokens && !says_phi3) return name + " (phi-3)";
  if (says_phi3 && !tokenizer.has_phi3_tokens)
    for (size_t i = 0; (i = lower.find("phi", i)) != std::string::npos; i += 3) name[i] = name[i] == 'P' ? 'F' : 'f';
  return name;
}

class GgufExport {
 public:
  explicit GgufExport(const GgufOptions& options)
      : options_(options),
        where_((options.model / "config.json").string()),
        config_(read_json(options.model / "config.json", ErrorKind::kModel)),
        files_(options.model) {
    if (files_.gguf() != nullptr)
      throw Error(ErrorKind::kModel,
                  options.model.string() + ": a GGUF file already; expected a checkpoint of safetensors");
    if (!config_.is_object()) throw Error(ErrorKind::kModel, where_ + ": expected an object");
    const gguf::ExportFamily& family =
        gguf::export_family(json_string(config_, "model_type", where_, ErrorKind::kModel), where_);
    const gguf::ExportedConfig exported = gguf::export_config(config_, family, where_);
    const std::vector<std::string> names = files_.names();
    tensors_ = gguf::exported_tensors(family, exported, {names.begin(), names.end()}, options.model.string());
    if (exported.shape.tied && files_.contains("lm_head.weight") &&
        !files_.equal("lm_head.weight", "model.embed_tokens.weight"))
      throw Error(ErrorKind::kModel, where_ + ": tie_word_embeddings: true, and lm_head.weight is not the embedding");
    result_.architecture = family.architecture;
    result_.type = options.type == "auto" ? own_type("model.embed_tokens.weight") : options.type;
    const gguf::ExportedTokenizer tokenizer =
        gguf::export_tokenizer(read_tokenizer(options.model, config_), exported.shape.vocab);
    describe(exported, tokenizer);
  }

  GgufResult run(const ProgressFn& progress) {
    std::vector<gguf::TensorToStore> stored;
    uint64_t total = 1 << 20;
    for (const gguf::ExportedTensor& tensor : tensors_) {
      stored.push_back(stored_form(tensor));
      total += stored.back().bytes() + 64;
    }
    const fs::path folder = options_.out.has_parent_path() ? options_.out.parent_path() : fs::path(".");
    if (const uint64_t free = free_disk_bytes(folder); free < total)
      throw Error(ErrorKind::kIo, options_.out.string() + ": needs " + std::to_string(total >> 20) + " MiB, " +
                                      std::to_string(free >> 20) + " MiB are free");
    const fs::path partial = options_.out.string() + "." + std::to_string(::getpid()) + ".partial";
    gguf::GgufWriter writer(partial, metadata_, stored);
    try {
      for (size_t i = 0; i < tensors_.size(); ++i) {
        write(writer, tensors_[i], stored[i]);
        result_.bytes += stored[i].bytes();
        if (progress)
          progress({"export", static_cast<double>(i + 1), static_cast<double>(tensors_.size()), "tensors",
                    tensors_[i].name});
      }
      writer.finish();
      result_.bytes = fs::file_size(partial);
      rename_file(partial, options_.out);
    } catch (...) {
      std::error_code ec;
      fs::remove(partial, ec);
      throw;
    }
    result_.tensors = tensors_.size();
    return std::move(result_);
  }

 private:
  void describe(const gguf::ExportedConfig& exported, const gguf::ExportedTokenizer& tokenizer) {
    metadata_ = {{"general.architecture", std::string(result_.architecture)},
                 {"general.type", std::string("model")},
                 {"general.name", general_name(options_, tokenizer)},
                 {"general.file_type", file_type(result_.type).number},
                 {"general.quantization_version", uint32_t{2}}};
    metadata_.insert(metadata_.end(), exported.metadata.begin(), exported.metadata.end());
    metadata_.insert(metadata_.end(), tokenizer.metadata.begin(), tokenizer.metadata.end());
    result_.warnings = exported.warnings;
    result_.warnings.insert(result_.warnings.end(), tokenizer.warnings.begin(), tokenizer.warnings.end());
    if (tokenizer.strips_spaces && !tokenizer.has_phi3_tokens)
      result_.warnings.push_back("llama.cpp does not take the spaces after a special token into it (rstrip)");
  }

  std::string where_of(const std::string& tensor) const {
    return files_.file_of(tensor).path().string() + ": tensor " + tensor;
  }

  // Returns the type that stores a parameter as it is.
  std::string own_type(const std::string& tensor) const {
    const std::string& dtype = files_.entry(tensor).dtype;
    if (dtype == "F32") return "f32";
    if (dtype == "F16") return "f16";
    if (dtype == "BF16") return "bf16";
    throw Error(ErrorKind::kModel, where_of(tensor) + " has dtype " + dtype + ", expected F32, BF16 or F16");
  }

  gguf::TensorToStore stored_form(const gguf::ExportedTensor& tensor) const {
    gguf::TensorToStore out{.name = tensor.name, .type = gguf::find_type("F32"), .shape = {}};
    if (tensor.source.empty()) {
      out.shape = {static_cast<int64_t>(tensor.values.size())};
      return out;
    }
    out.shape = files_.entry(tensor.source).shape;
    const std::string own = own_type(tensor.source);
    if (out.shape.empty() || out.shape.size() > 2 || std::ranges::find(out.shape, 0) != out.shape.end())
      throw Error(ErrorKind::kModel, where_of(tensor.source) + ": expected a vector or a matrix");
    if (tensor.permuted_heads != 0 && out.shape[0] % (2 * tensor.permuted_heads) != 0)
      throw Error(ErrorKind::kModel, where_of(tensor.source) + " has " + std::to_string(out.shape[0]) +
                                         " rows, expected an even number for each of " +
                                         std::to_string(tensor.permuted_heads) + " heads");
    if (out.shape.size() == 1) return out;
    const bool at_an_end = tensor.name == "token_embd.weight" || tensor.name == "output.weight";
    std::string type = result_.type == "q4_0" && at_an_end ? "q8_0" : result_.type;
    if (out.shape[1] % gguf::find_type(std::string_view(file_type(type).stored))->block_values != 0)
      type = own == "f32" ? "f16" : own;
    out.type = gguf::find_type(std::string_view(file_type(type).stored));
    return out;
  }

  // Reads values [first, first + out.size()) of a parameter.
  void read(const std::string& tensor, int64_t first, std::span<float> out) {
    const TensorEntry& entry = files_.entry(tensor);
    const auto width = static_cast<size_t>(dtype_bytes(entry.dtype));
    raw_.resize(out.size() * width);
    files_.file_of(tensor).read(entry.offset + static_cast<uint64_t>(first) * width, raw_);
    if (entry.dtype == "F32") {
      std::memcpy(out.data(), raw_.data(), raw_.size());
    } else {
      const bool is_fp16 = entry.dtype == "F16";
      for (size_t i = 0; i < out.size(); ++i) {
        uint16_t half;
        std::memcpy(&half, raw_.data() + 2 * i, 2);
        out[i] = is_fp16 ? fp16_to_float(half) : bf16_to_float(half);
      }
    }
  }

  void write(gguf::GgufWriter& writer, const gguf::ExportedTensor& tensor, const gguf::TensorToStore& stored) {
    if (tensor.source.empty()) return writer.write(std::as_bytes(std::span(tensor.values)));
    const int64_t rows = stored.shape[0], columns = stored.shape.size() == 2 ? stored.shape[1] : 1;
    // A piece is whole rows, of permuted parameters whole heads.
    const int64_t unit = tensor.permuted_heads != 0 ? rows / tensor.permuted_heads : 1;
    const int64_t step = std::max<int64_t>(1, kPieceValues / (unit * columns)) * unit;
    for (int64_t row = 0; row < rows; row += step) {
      if (stop_requested()) throw Error(ErrorKind::kNetwork, "stopped by a signal: nothing was written");
      const auto count = static_cast<size_t>(std::min(step, rows - row) * columns);
      values_.resize(count);
      read(tensor.source, row * columns, values_);
      if (tensor.plus != 0)
        for (float& value : values_) value += static_cast<float>(tensor.plus);
      if (tensor.permuted_heads != 0) permute(unit, columns);
      store(writer, tensor, *stored.type);
    }
  }

  // Reorders the rows of each head in values_: row 2·i + s becomes the row that was s·D/2 + i, with D rows a head.
  void permute(int64_t head_rows, int64_t columns) {
    permuted_.resize(values_.size());
    const int64_t heads = static_cast<int64_t>(values_.size()) / (head_rows * columns);
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t r = 0; r < head_rows; ++r) {
        const int64_t from = h * head_rows + r % 2 * (head_rows / 2) + r / 2;
        std::copy_n(values_.begin() + from * columns, columns, permuted_.begin() + (h * head_rows + r) * columns);
      }
    values_.swap(permuted_);
  }

  void store(gguf::GgufWriter& writer, const gguf::ExportedTensor& tensor, const gguf::TensorType& type) {
    for (const float value : values_)
      if (!std::isfinite(value))
        throw Error(ErrorKind::kModel, where_of(tensor.source) + " holds a NaN or an infinity");
    blocks_.resize(values_.size() / static_cast<size_t>(type.block_values) * static_cast<size_t>(type.block_bytes));
    try {
      gguf::quantise(type, values_, blocks_);
    } catch (const Error& e) {
      throw Error(e.kind(), where_of(tensor.source) + ": " + e.what() + "; another --type can hold it");
    }
    writer.write(blocks_);
  }

  const GgufOptions& options_;
  const std::string where_;
  const Json config_;
  const SafetensorsDirectory files_;
  gguf::Metadata metadata_;
  std::vector<gguf::ExportedTensor> tensors_;
  GgufResult result_;
  std::vector<float> values_, permuted_;
  std::vector<std::byte> raw_, blocks_;
};

}  // namespace

const std::vector<std::string>& known_gguf_types() {
  static const std::vector<std::string> kTypes = {"auto", "f32", "f16", "bf16", "q8_0", "q4_0"};
  return kTypes;
}

void require_known_gguf_type(const std::string& type) {
  if (std::ranges::find(known_gguf_types(), type) != known_gguf_types().end()) return;
  std::string all;
  for (const std::string& known : known_gguf_types()) all += (all.empty() ? "" : ", ") + known;
  throw Error(ErrorKind::kUsage, "type '" + type.substr(0, 64) + "': expected one of " + all);
}

GgufResult export_gguf(const GgufOptions& options, const ProgressFn& progress) {
  require_known_gguf_type(options.type);
  return GgufExport(options).run(progress);
}

}  // namespace specdec::deploy
