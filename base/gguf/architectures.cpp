#include "base/gguf/architectures.h"

namespace specdec::gguf {

namespace {

using Norms = Architecture::Norms;

constexpr Architecture kArchitectures[] = {
    {.name = "llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .permuted = true,
     .attention_bias = true,
     .mlp_bias = true},
    {.name = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .qkv_bias = true},
    {.name = "qwen3",
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .qk_norms = true,
     .attention_bias = true},
    {.name = "gemma2",
     .model_type = "gemma2",
     .class_name = "Gemma2ForCausalLM",
     .norms = Norms::kAround,
     .gemma = true},
    {.name = "gemma3",
     .model_type = "gemma3_text",
     .class_name = "Gemma3ForCausalLM",
     .norms = Norms::kAround,
     .gemma = true,
     .qk_norms = true},
    {.name = "phi3", .model_type = "phi3", .class_name = "Phi3ForCausalLM", .fused = true},
    {.name = "smollm3",
     .model_type = "smollm3",
     .class_name = "SmolLM3ForCausalLM",
     .permuted = true,
     .attention_bias = true,
     .mlp_bias = true},
    {.name = "olmo2",
     .model_type = "olmo2",
     .class_name = "Olmo2ForCausalLM",
     .norms = Norms::kAfter,
     .qk_norms = true,
     .attention_bias = true},
};

}  // namespace

const Architecture& architecture_of(const GgufFile& file) {
  const std::string name = file.text("general.architecture");
  const auto refuse = [&](const std::string& found) {
    std::string known;
    for (const Architecture& row : kArchitectures) known += (known.empty() ? "" : ", ") + std::string(row.name);
    throw Error(ErrorKind::kModel, path_of(file) + ": " + found + " is not supported from GGUF files; supported: " +
                                       known + "; use the model's Hugging Face checkpoint instead");
  };
  for (const Architecture& row : kArchitectures) {
    if (name != row.name) continue;
    if (file.integer(name + ".expert_count", 0, 1 << 20, 0) != 0)
      refuse("a mixture of experts (" + name + ".expert_count)");
    if (!file.flag(name + ".attention.causal", true)) refuse("bidirectional attention (" + name + ".attention.causal)");
    return row;
  }
  refuse("general.architecture " + shown(name));
  return kArchitectures[0];  // not reached
}

std::string path_of(const GgufFile& file) { return file.files().front()->path().string(); }

std::string shown(const std::string& text) {
  std::string out = "'";
  for (const char c : text.substr(0, 80)) out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  return out + (text.size() > 80 ? "…'" : "'");
}

}  // namespace specdec::gguf
