#include "deploy/package/checks.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "base/gguf/blocks.h"
#include "base/gguf/model_files.h"
#include "base/json.h"
#include "base/safetensors.h"

namespace specdec::deploy {

namespace {

constexpr size_t kMaxTokenizerBytes = 256u << 20;

// Returns whether every element is finite. An element with all exponent bits set is infinity or NaN; `mask` covers the
// exponent bits of one element.
template <class Word>
bool all_finite(std::span<const std::byte> bytes, Word mask) {
  Word found = 0;
  for (size_t i = 0; i + sizeof(Word) <= bytes.size(); i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, bytes.data() + i, sizeof word);
    found |= static_cast<Word>((word & mask) == mask);
  }
  return found == 0;
}

bool is_finite(const std::string& dtype, std::span<const std::byte> bytes) {
  if (dtype == "F64") return all_finite<uint64_t>(bytes, 0x7ff0000000000000u);
  if (dtype == "F32") return all_finite<uint32_t>(bytes, 0x7f800000u);
  if (dtype == "BF16") return all_finite<uint16_t>(bytes, 0x7f80u);
  if (dtype == "F16") return all_finite<uint16_t>(bytes, 0x7c00u);
  if (dtype == "F8_E4M3") return all_finite<uint8_t>(bytes, 0x7fu);  // E4M3 has no infinities, and this pattern is NaN
  return true;
}

// Returns whether the values of whole blocks of a GGUF file are finite.
bool is_finite(const gguf::TensorType& type, std::span<const std::byte> bytes) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(type.block_bytes) *
                            static_cast<size_t>(type.block_values));
  gguf::dequantise(type, bytes, values);
  return all_finite<uint32_t>(std::as_bytes(std::span(values)), 0x7f800000u);
}

void check_weights(const fs::path& directory, std::vector<Finding>& findings) {
  const SafetensorsDirectory tensors(directory);
  std::vector<std::byte> block(8u << 20);
  for (const std::string& name : tensors.names()) {
    const TensorEntry& entry = tensors.entry(name);
    const InputFile& file = tensors.file_of(name);
    const gguf::TensorType* blocks = tensors.gguf() ? tensors.placed(name).tensor->type : nullptr;
    const uint64_t step =
        blocks ? block.size() / static_cast<uint64_t>(blocks->block_bytes) * static_cast<uint64_t>(blocks->block_bytes)
               : block.size();
    for (uint64_t at = 0; at < entry.bytes; at += step) {
      const auto part = std::span(block).first(std::min<uint64_t>(step, entry.bytes - at));
      file.read(entry.offset + at, part);
      if (blocks ? is_finite(*blocks, part) : is_finite(entry.dtype, part)) continue;
      findings.push_back({true, "not-finite", file.path().string(), name + ": holds a NaN or an infinity"});
      break;
    }
  }
}

// Returns the two values of rope_theta: in rope_parameters and at the top level of config.json. If either is missing,
// returns two equal values, so that the caller reports only contradictions.
std::pair<Json, Json> rope_thetas(const Json& config) {
  if (!config.contains("rope_theta") || !config.contains("rope_parameters") || !config["rope_parameters"].is_object())
    return {};
  const Json& flat = config["rope_theta"];
  return {config["rope_parameters"].value("rope_theta", flat), flat};
}

void check_rope(const Json& config, const fs::path& file, std::vector<Finding>& findings) {
  if (config.contains("rope_parameters") != config.contains("rope_theta"))
    findings.push_back({false, "rope", file.string(),
                        "write both rope_parameters and rope_theta: engines that know only the other one fall back to "
                        "a default and lose acceptance"});
  if (const auto [nested, flat] = rope_thetas(config); nested != flat)
    findings.push_back({false, "rope", file.string(),
                        "rope_theta " + canonical_json(flat) + ", in rope_parameters " + canonical_json(nested) +
                            ": each generation of engines reads another one"});
}

void check_config(const Json& config, const fs::path& file, std::vector<Finding>& findings) {
  const auto warn = [&](const char* rule, const std::string& text) {
    findings.push_back({false, rule, file.string(), text});
  };
  for (const char* key : {"use_cache", "target_hidden_size"})
    if (config.contains(key) && config[key].is_null())
      warn("nulls", std::string(key) + ": null: SGLang and vLLM expect a number: leave the key out");
  if (config.contains("draft_vocab_size") && config["draft_vocab_size"].is_null())
    warn("nulls",
         "draft_vocab_size: null: vLLM and SGLang take the target's vocabulary, SGLang its lm_head, too; specdec "
         "itself expects a number");
  if (!config.contains("torch_dtype") || !config.contains("dtype"))
    warn("dtype-keys", "write both torch_dtype and dtype: each generation of engines reads one");
  if (!config.contains("architectures"))
    warn("architectures", "architectures: missing: vLLM and SGLang choose the model class by it");
  if (config.contains("auto_map"))
    warn("remote-code", "auto_map: remote code is never run: the built-in implementation is used");
}

void check_tokenizers(const fs::path& target, const fs::path& draft, std::vector<Finding>& findings) {
  if (read_file(target / "tokenizer.json", kMaxTokenizerBytes, ErrorKind::kModel) !=
      read_file(draft / "tokenizer.json", kMaxTokenizerBytes, ErrorKind::kModel))
    findings.push_back({true, "tokenizer", (draft / "tokenizer.json").string(),
                        "differs from the target's: a draft needs the target's tokenizer, byte for byte"});
}

}  // namespace

std::vector<Finding> check_pair(const fs::path& target, const fs::path& draft, bool head) {
  std::vector<Finding> findings;
  const Json whole = read_json(draft / "config.json", ErrorKind::kModel),
             theirs = read_json(target / "config.json", ErrorKind::kModel);
  const bool nested = head && whole.contains("transformer_layer_config");  // the layout of the speculators library
  const Json& ours =
      nested ? json_object(whole, "transformer_layer_config", 256, (draft / "config.json").string(), ErrorKind::kModel)
             : whole;
  const auto number = [](const Json& config, const char* key, const fs::path& directory) {
    return json_int(config, key, {1, int64_t{1} << 40}, (directory / "config.json").string(), ErrorKind::kModel);
  };
  const int64_t draft_vocab = number(ours, "vocab_size", draft), target_vocab = number(theirs, "vocab_size", target);
  if (draft_vocab != target_vocab)
    findings.push_back(
        {true, "vocab-size", (draft / "config.json").string(),
         "vocab_size " + std::to_string(draft_vocab) + ", the target has " + std::to_string(target_vocab)});
  if (!head || fs::exists(draft / "tokenizer.json")) check_tokenizers(target, draft, findings);
  // A config.json that specdec made from a GGUF file is for specdec alone.
  const bool made = gguf::file_in(draft) != fs::path();
  if (!nested && !made) check_config(ours, draft / "config.json", findings);
  if (!made) check_rope(ours, draft / "config.json", findings);
  if (ours.contains("max_position_embeddings") && theirs.contains("max_position_embeddings")) {
    const int64_t context = number(ours, "max_position_embeddings", draft),
                  needed = number(theirs, "max_position_embeddings", target);
    if (context < needed)
      findings.push_back({false, "context", (draft / "config.json").string(),
                          "max_position_embeddings " + std::to_string(context) + " below the target's " +
                              std::to_string(needed) + ": SGLang refuses, vLLM shortens the context"});
  }
  check_weights(target, findings);
  check_weights(draft, findings);
  return findings;
}

bool is_tokenizer_file(const std::string& name) {
  static const std::set<std::string> kNames = {"tokenizer.json",
                                               "tokenizer_config.json",
                                               "special_tokens_map.json",
                                               "added_tokens.json",
                                               "tokenizer.model",
                                               "vocab.json",
                                               "vocab.txt",
                                               "merges.txt",
                                               "chat_template.jinja",
                                               "chat_template.json"};
  return kNames.count(name) != 0;
}

std::vector<std::string> model_files(const fs::path& directory) {
  std::set<std::string> names;
  const SafetensorsDirectory tensors(directory);
  for (const fs::path& file : tensors.files()) names.insert(file.filename().string());
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string(), extension = entry.path().extension().string();
    if (name[0] == '.' || !entry.is_regular_file()) continue;
    const bool text = extension == ".json" || extension == ".jinja" || extension == ".txt" || extension == ".model" ||
                      extension == ".md";
    if ((text && name != "manifest.json") || name.rfind("LICENSE", 0) == 0 || name.rfind("NOTICE", 0) == 0)
      names.insert(name);
  }
  // A model in a single file needs no index, and an index left over from sharded weights would name files that do not
  // exist.
  if (names.count("model.safetensors")) names.erase("model.safetensors.index.json");
  return {names.begin(), names.end()};
}

void visit_fields(Fields& f, Finding& finding) {
  f.type("Finding", "Something that engines refuse or serve badly.");
  f.one_of("level", finding.fatal, {{true, "error"}, {false, "warning"}});
  f("rule", finding.rule);
  f("file", finding.file);
  f("text", finding.text);
}

}  // namespace specdec::deploy
