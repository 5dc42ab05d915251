#include "base/gguf/export_family.h"

#include "base/error.h"

namespace specdec::gguf {

namespace {

constexpr ExportFamily kExportFamilies[] = {
    {.model_type = "llama",
     .architecture = "llama",
     .permutes_heads = true,
     .qkv_bias = true,
     .out_bias = true,
     .mlp_bias = true,
     .reads_rope_factors = true},
    {.model_type = "mistral",
     .architecture = "llama",
     .permutes_heads = true,
     .reads_rope_factors = true,
     .windows = ExportWindows::kEvery,
     .kv_heads = 8,
     .max_position = 131072,
     .window = 4096},
    {.model_type = "qwen2",
     .architecture = "qwen2",
     .qkv_bias = true,
     .heads_fill_hidden = true,
     .windows = ExportWindows::kSwitched,
     .kv_heads = 32,
     .max_position = 32768,
     .window = 4096},
    {.model_type = "qwen3",
     .architecture = "qwen3",
     .qk_norm = true,
     .qkv_bias = true,
     .windows = ExportWindows::kSwitched,
     .kv_heads = 32,
     .head_dim = 128,
     .max_position = 32768,
     .window = 4096},
    {.model_type = "gemma2",
     .architecture = "gemma2",
     .norms = ExportNorms::kAround,
     .norm_offset = 1,
     .qkv_bias = true,
     .may_have_head = false,
     .gemma = true,
     .windows = ExportWindows::kAlternating,
     .full_every = 2,
     .kv_heads = 4,
     .head_dim = 256,
     .max_position = 8192,
     .window = 4096,
     .tied = true},
    {.model_type = "gemma3_text",
     .architecture = "gemma3",
     .qk_norm = true,
     .norms = ExportNorms::kAround,
     .norm_offset = 1,
     .qkv_bias = true,
     .gemma = true,
     .local_rope = true,
     .windows = ExportWindows::kAlternating,
     .full_every = 6,
     .kv_heads = 4,
     .head_dim = 256,
     .max_position = 131072,
     .window = 4096,
     .theta = 1e6,
     .tied = true},
    {.model_type = "phi3",
     .architecture = "phi3",
     .fused = true,
     .heads_fill_hidden = true,
     .partial_rotary = true,
     .windows = ExportWindows::kEvery,
     .max_position = 4096,
     .epsilon = 1e-5},
    {.model_type = "smollm3",
     .architecture = "smollm3",
     .permutes_heads = true,
     .qkv_bias = true,
     .unrotated_layers = true,
     .windows = ExportWindows::kSwitched,
     .kv_heads = 4,
     .max_position = 32768,
     .theta = 2e6,
     .tied = true},
    {.model_type = "olmo2",
     .architecture = "olmo2",
     .qk_norm = true,
     .norms = ExportNorms::kAfter,
     .qkv_bias = true,
     .heads_fill_hidden = true,
     .needs_head = true,
     .epsilon = 1e-5},
};

}  // namespace

const ExportFamily& export_family(const std::string& model_type, const std::string& where) {
  std::string known;
  for (const ExportFamily& family : kExportFamilies) {
    if (model_type == family.model_type) return family;
    known += (known.empty() ? "" : ", ") + std::string(family.model_type);
  }
  throw Error(ErrorKind::kModel, where + ": model_type: '" + model_type.substr(0, 64) +
                                     "' cannot be written as GGUF; these can: " + known);
}

}  // namespace specdec::gguf
