#include "base/gguf/architectures.h"

#include "base/gguf/header_reader.h"

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
  std::string known, found = "general.architecture " + in_quotes(name);
  for (const Architecture& row : kArchitectures) {
    known += (known.empty() ? "" : ", ") + std::string(row.name);
    if (name != row.name) continue;
    const bool experts = file.integer(name + ".expert_count", 0, 1 << 20, 0) != 0;
    if (!experts && file.flag(name + ".attention.causal", true)) return row;
    found = experts ? "a mixture of experts (" + name + ".expert_count)"
                    : "bidirectional attention (" + name + ".attention.causal)";
  }
  refuse_model(file, found + " is not supported; supported: " + known +
                         ", without experts; use the model's Hugging Face checkpoint instead");
}

void refuse_model(const GgufFile& file, const std::string& text) {
  throw Error(ErrorKind::kModel, file.files().front()->path().string() + ": " + text);
}

}  // namespace specdec::gguf
