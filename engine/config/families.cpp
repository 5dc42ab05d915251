#include "engine/config/families.h"

namespace specdec::model {

namespace {

constexpr Family kFamilies[] = {
    {.model_type = "llama", .architecture = "LlamaForCausalLM", .biases = Biases::kFlag, .mlp_bias = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .num_kv_heads = 8,
     .max_position = 131072,
     .windows = Windows::kAll,
     .sliding_window = 4096},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .num_kv_heads = 32,
     .max_position = 32768,
     .biases = Biases::kQkv,
     .windows = Windows::kUpper,
     .sliding_window = 4096},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .head_dim = 128,
     .num_kv_heads = 32,
     .max_position = 32768,
     .biases = Biases::kFlag,
     .qk_norm = QkNorm::kHead,
     .windows = Windows::kUpper,
     .sliding_window = 4096},
    {.model_type = "gemma2",
     .architecture = "Gemma2ForCausalLM",
     .head_dim = 256,
     .num_kv_heads = 4,
     .max_position = 8192,
     .tied = true,
     .pads = true,
     .activation_key = "hidden_activation",
     .activation = Activation::kGeluTanh,
     .biases = Biases::kFlag,
     .norms = Norms::kAround,
     .norm_offset = 1,
     .norm_rounds_last = true,
     .windows = Windows::kAlternating,
     .sliding_window = 4096,
     .full_every = 2,
     .gemma = true,
     .attention_soft_cap = 50,
     .final_soft_cap = 30},
    {.model_type = "gemma3_text",
     .architecture = "Gemma3ForCausalLM",
     .theta = 1e6,
     .head_dim = 256,
     .num_kv_heads = 4,
     .max_position = 131072,
     .tied = true,
     .pads = true,
     .activation_key = "hidden_activation",
     .activation = Activation::kGeluTanh,
     .biases = Biases::kFlag,
     .norms = Norms::kAround,
     .norm_offset = 1,
     .norm_rounds_last = true,
     .qk_norm = QkNorm::kHead,
     .windows = Windows::kAlternating,
     .sliding_window = 4096,
     .full_every = 6,
     .local_rope = true,
     .gemma = true},
    {.model_type = "phi3",
     .architecture = "Phi3ForCausalLM",
     .rms_norm_eps = 1e-5,
     .max_position = 4096,
     .pads = true,
     .windows = Windows::kAll,
     .partial_rotary = true,
     .fused = true,
     .original_max_position = 4096},
    {.model_type = "smollm3",
     .architecture = "SmolLM3ForCausalLM",
     .theta = 2e6,
     .num_kv_heads = 4,
     .max_position = 32768,
     .tied = true,
     .pads = true,
     .biases = Biases::kFlag,
     .mlp_bias = true,
     .windows = Windows::kUnrotated,
     .unrotated_layers = true},
    {.model_type = "olmo2",
     .architecture = "Olmo2ForCausalLM",
     .rms_norm_eps = 1e-5,
     .pads = true,
     .biases = Biases::kFlag,
     .norms = Norms::kAfter,
     .norm_rounds_last = true,
     .qk_norm = QkNorm::kProjection},
    {.model_type = "mixtral",
     .architecture = "MixtralForCausalLM",
     .theta = 1e6,
     .rms_norm_eps = 1e-5,
     .num_kv_heads = 8,
     .max_position = 131072,
     .windows = Windows::kAll,
     .experts = {"block_sparse_moe.gate", "block_sparse_moe.experts", "w1", "w3", "w2"}},
    {.model_type = "qwen3_moe",
     .architecture = "Qwen3MoeForCausalLM",
     .num_kv_heads = 4,
     .max_position = 32768,
     .biases = Biases::kFlag,
     .qk_norm = QkNorm::kHead,
     .windows = Windows::kSwitched,
     .sliding_window = 4096,
     .experts = {"mlp.gate", "mlp.experts", "gate_proj", "up_proj", "down_proj", "moe_intermediate_size"}},
};

}  // namespace

const Family& find_family(const std::string& model_type, const std::string& where) {
  std::string known;
  for (const Family& family : kFamilies) {
    if (model_type == family.model_type) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  for (const char* wrapper : {"gemma3", "mistral3", "llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "mllama"}) {
    if (model_type == wrapper)
      throw Error(ErrorKind::kModel, where + ": model_type: '" + model_type +
                                         "' wraps a text decoder with an image encoder; save the text decoder as a "
                                         "checkpoint of its own and use that; supported: " +
                                         known);
  }
  throw Error(ErrorKind::kModel, where + ": model_type: '" + model_type + "' is not supported; supported: " + known);
}

}  // namespace specdec::model
