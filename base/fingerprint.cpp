#include "base/fingerprint.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/file.h"
#include "base/philox.h"
#include "base/safetensors.h"
#include "base/sha256.h"

namespace specdec {

namespace {

constexpr uint64_t kSampleBytes = 4096, kNumSamples = 4, kSampleSeed = 0x73706563646563;  // "specdec" in ASCII

std::string config_digest(const fs::path& directory) {
  Json files = Json::object();
  for (const char* name :
       {"config.json", "generation_config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json"}) {
    const fs::path file = directory / name;
    if (std::string(name) != "config.json" && !fs::exists(file)) continue;
    Json content = read_json(file, ErrorKind::kModel);
    if (!content.is_object()) throw Error(ErrorKind::kModel, file.string() + ": expected a JSON object");
    for (const char* key : {"transformers_version", "_name_or_path", "_commit_hash"}) content.erase(key);
    files[name] = std::move(content);
  }
  return sha256_hex(canonical_json(files));
}

// tokenizer_config.json stores a special token as text or as {"content": text, …}.
Json special_token(const Json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return nullptr;
  if (it->is_object() && it->contains("content")) return (*it)["content"];
  return *it;
}

Json chat_template(const fs::path& directory, const Json& tokenizer_config) {
  if (const fs::path file = directory / "chat_template.jinja"; fs::exists(file)) {
    const std::string text = read_file(file, 1u << 20, ErrorKind::kModel);
    // A template that is not UTF-8 cannot be put into canonical JSON, but its digest can.
    return "sha256:" + sha256_hex(text);
  }
  Json source = nullptr;
  if (const fs::path file = directory / "chat_template.json"; fs::exists(file)) {
    const Json content = read_json(file, ErrorKind::kModel);
    if (!content.is_object() || !content.contains("chat_template"))
      throw Error(ErrorKind::kModel, file.string() + ": chat_template: missing");
    source = content["chat_template"];
  } else if (tokenizer_config.contains("chat_template")) {
    source = tokenizer_config["chat_template"];
  }
  if (source.is_null()) return nullptr;
  return "sha256:" + sha256_hex(source.is_string() ? source.get<std::string>() : canonical_json(source));
}

std::string header_digest(const SafetensorsDirectory& tensors) {
  Json list = Json::array();
  for (const std::string& name : tensors.names()) {
    const TensorEntry& entry = tensors.entry(name);
    list.push_back({name, entry.dtype, entry.shape});
  }
  return sha256_hex(canonical_json(list));
}

std::string weights_digest(const SafetensorsDirectory& tensors) {
  Sha256 hash;
  std::vector<std::byte> block(kNumSamples * kSampleBytes);
  for (const std::string& name : tensors.names()) {
    const TensorEntry& entry = tensors.entry(name);
    const InputFile& file = tensors.file_of(name);
    hash.update(name);
    hash.update(std::string_view("\0", 1));
    if (entry.bytes <= block.size()) {
      const auto all = std::span(block).first(entry.bytes);
      file.read(entry.offset, all);
      hash.update(all);
      continue;
    }
    PhiloxStream offsets(kSampleSeed, std::stoull(sha256_hex(name).substr(0, 16), nullptr, 16));
    for (uint64_t i = 0; i < kNumSamples; ++i) {
      const auto sample = std::span(block).first(kSampleBytes);
      file.read(entry.offset + offsets.below(entry.bytes - kSampleBytes + 1), sample);
      hash.update(sample);
    }
  }
  return hash.hex();
}

std::string identity(const Fingerprint& f) {
  return sha256_hex(
      canonical_json({{"config", f.config}, {"header", f.header}, {"tokenizer", f.tokenizer}, {"weights", f.weights}}));
}

}  // namespace

std::string tokenizer_digest(const std::filesystem::path& directory) {
  const fs::path config_file = directory / "tokenizer_config.json";
  const Json config = fs::exists(config_file) ? read_json(config_file, ErrorKind::kModel) : Json::object();
  if (!config.is_object()) throw Error(ErrorKind::kModel, config_file.string() + ": expected a JSON object");
  const std::string tokenizer = sha256_hex(read_file(directory / "tokenizer.json", 256u << 20, ErrorKind::kModel));
  return sha256_hex(canonical_json({{"tokenizer", tokenizer},
                                    {"chat_template", chat_template(directory, config)},
                                    {"bos_token", special_token(config, "bos_token")},
                                    {"eos_token", special_token(config, "eos_token")}}));
}

Fingerprint fingerprint_model(const std::filesystem::path& directory) {
  if (!fs::is_directory(directory))
    throw Error(ErrorKind::kModel,
                directory.string() + ": expected a model directory (config.json, *.safetensors, tokenizer.json)");
  Fingerprint f;
  f.config = config_digest(directory);
  f.tokenizer = tokenizer_digest(directory);
  const SafetensorsDirectory tensors(directory);
  f.header = header_digest(tensors);
  f.weights = weights_digest(tensors);
  f.id = identity(f);
  return f;
}

void visit_fields(Fields& f, Fingerprint& print) {
  f.digest("config", print.config);
  f.digest("tokenizer", print.tokenizer);
  f.digest("header", print.header);
  f.digest("weights", print.weights);
  f.digest("id", print.id);
  if (f.reads() && print.id != identity(print))
    f.refuse("id: does not belong to the other digests (the fingerprint was edited)");
}

Json to_json(const Fingerprint& f) { return json_of(f); }

Fingerprint fingerprint_from_json(const Json& object, const std::string& where, ErrorKind kind) {
  return read_fields<Fingerprint>(object, where, kind);
}

std::string differing_tiers(const Fingerprint& a, const Fingerprint& b) {
  std::string text;
  const auto compare = [&](const char* tier, const std::string& x, const std::string& y) {
    if (x != y) text += (text.empty() ? "" : ", ") + std::string(tier);
  };
  compare("config", a.config, b.config);
  compare("tokenizer", a.tokenizer, b.tokenizer);
  compare("header", a.header, b.header);
  compare("weights", a.weights, b.weights);
  return text;
}

}  // namespace specdec
