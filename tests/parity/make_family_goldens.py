#!/usr/bin/env python3
"""Makes golden/families/: tiny random models of every family except Llama and of every RoPE scaling except llama3, both
of which make_goldens.py makes. Pinned: transformers 5.23.0, torch 2.11.0.

    python make_family_goldens.py [CASE...]     makes the named cases or all of them (deterministic on one machine)

golden/families/<case>/             config.json, model.safetensors: a Hugging Face directory, as transformers writes it
golden/families/<case>.safetensors  tokens [B, S] int64, positions [B, S] int64, logits [B, S, V] fp32 of one pass over
                                    the batch. If the scaling depends on the length, stepwise [B, S, V]: row s is the
                                    last row of a pass over s + 1 tokens of one sequence. In fp32 cases loss [1] (mean
                                    over positions 0..S-2 of -log q(next token)) and grad.<name>. Names are those of
                                    DecoderWeights::visit: joined matrices (qkv_proj, gate_up_proj, experts) are split.

The second row of tokens crosses position 64, the original context of the models. That of longrope is 24 tokens, which
the first row crosses. Attention windows are shorter than the rows.
"""

import copy
import shutil
import sys
from pathlib import Path

import torch
import transformers as tf
from safetensors.torch import save_file

here = Path(__file__).resolve().parent / "golden" / "families"
base = dict(
    vocab_size=48,
    hidden_size=24,
    intermediate_size=32,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    bos_token_id=1,
    eos_token_id=2,
    pad_token_id=None,
    attn_implementation="eager",
)
factors = dict(short_factor=[1.0, 1.1, 1.3, 1.0, 1.2, 1.5], long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
llama = (tf.LlamaConfig, tf.LlamaForCausalLM)
gemma2 = dict(sliding_window=8, query_pre_attn_scalar=16, attn_logit_softcapping=5.0, final_logit_softcapping=4.0)
gemma3 = dict(
    num_hidden_layers=4,
    sliding_window=6,
    sliding_window_pattern=3,
    query_pre_attn_scalar=12,
    rope_parameters={
        "full_attention": dict(rope_type="linear", rope_theta=5000.0, factor=8.0),
        "sliding_attention": dict(rope_type="default", rope_theta=100.0),
    },
)
cases = {
    "mistral": (tf.MistralConfig, tf.MistralForCausalLM, dict(sliding_window=7)),
    "qwen2": (
        tf.Qwen2Config,
        tf.Qwen2ForCausalLM,
        dict(use_sliding_window=True, sliding_window=9, max_window_layers=2, tie_word_embeddings=True),
    ),
    "qwen3": (tf.Qwen3Config, tf.Qwen3ForCausalLM, dict(head_dim=12)),
    "gemma2": (tf.Gemma2Config, tf.Gemma2ForCausalLM, gemma2),
    "gemma3": (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM, gemma3),
    "phi3": (tf.Phi3Config, tf.Phi3ForCausalLM, dict(sliding_window=11, num_key_value_heads=4)),
    "phi4_mini": (
        tf.Phi3Config,
        tf.Phi3ForCausalLM,
        dict(
            hidden_size=32,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=16,
            max_position_embeddings=96,
            original_max_position_embeddings=24,
            tie_word_embeddings=True,
            rope_parameters=dict(rope_type="longrope", rope_theta=1000.0, partial_rotary_factor=0.75, **factors),
        ),
    ),
    "smollm3": (tf.SmolLM3Config, tf.SmolLM3ForCausalLM, dict(no_rope_layer_interval=2)),
    "olmo2": (tf.Olmo2Config, tf.Olmo2ForCausalLM, dict()),
    "mixtral": (
        tf.MixtralConfig,
        tf.MixtralForCausalLM,
        dict(num_hidden_layers=2, intermediate_size=20, num_local_experts=4, num_experts_per_tok=2),
    ),
    "qwen3_moe": (
        tf.Qwen3MoeConfig,
        tf.Qwen3MoeForCausalLM,
        dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=12, norm_topk_prob=True, mlp_only_layers=[1]),
    ),
    "rope_linear": (*llama, dict(rope_parameters=dict(rope_type="linear", rope_theta=500.0, factor=4.0))),
    "rope_dynamic": (*llama, dict(rope_parameters=dict(rope_type="dynamic", rope_theta=500.0, factor=4.0))),
    "rope_yarn": (
        *llama,
        dict(
            head_dim=16,
            max_position_embeddings=256,
            rope_parameters=dict(
                rope_type="yarn",
                rope_theta=500.0,
                factor=4.0,
                original_max_position_embeddings=64,
                beta_fast=4.0,
                beta_slow=1.0,
            ),
        ),
    ),
    "qwen3_bf16": (tf.Qwen3Config, tf.Qwen3ForCausalLM, dict(dtype="bfloat16")),
    "gemma2_bf16": (tf.Gemma2Config, tf.Gemma2ForCausalLM, dict(gemma2, dtype="bfloat16")),
    "olmo2_bf16": (tf.Olmo2Config, tf.Olmo2ForCausalLM, dict(dtype="bfloat16")),
    "mistral_fp16": (tf.MistralConfig, tf.MistralForCausalLM, dict(sliding_window=7, dtype="float16")),
    "gemma3_fp16": (tf.Gemma3TextConfig, tf.Gemma3ForCausalLM, dict(gemma3, dtype="float16")),
}
torch.set_num_threads(1)  # fixes the order of summation


def random_model(config_class, model_class, overrides, seed):
    """Returns a model with large weights, so that attention is peaked and logits are of order 1. In 16 bits the weights
    are smaller, because large ones would amplify rounding."""
    torch.manual_seed(seed)
    model = model_class(config_class(**{**base, **overrides})).float().eval()
    scale = 0.3 if "dtype" not in overrides else 0.15
    centre = 0.0 if "Gemma" in model_class.__name__ else 1.0
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_(
                centre + 0.2 * torch.randn_like(p)
                if name.endswith("norm.weight")
                else torch.randn_like(p) * (scale if p.dim() >= 2 else 0.2)
            )
    return model


def visited(name, tensor, config):
    """Splits a tensor of transformers into the parameters that visit() has, and returns them by visit()'s names."""
    width = config.head_dim
    if name.endswith("qkv_proj.weight"):
        rows = [
            config.num_attention_heads * width,
            config.num_key_value_heads * width,
            config.num_key_value_heads * width,
        ]
        return {
            name.replace("qkv_proj", part): piece
            for part, piece in zip(["q_proj", "k_proj", "v_proj"], tensor.split(rows))
        }
    if name.endswith("experts.gate_up_proj") or name.endswith("experts.down_proj"):
        mixtral = config.model_type == "mixtral"
        names = ["w1", "w3"] if mixtral else ["gate_proj", "up_proj"]
        stem = name.rsplit(".", 1)[0].replace("mlp", "block_sparse_moe" if mixtral else "mlp")
        parts = {}
        for k, expert in enumerate(tensor):
            if name.endswith("down_proj"):
                parts[f"{stem}.{k}.{'w2' if mixtral else 'down_proj'}.weight"] = expert
            else:
                parts |= {f"{stem}.{k}.{part}.weight": piece for part, piece in zip(names, expert.chunk(2))}
        return parts
    if name.endswith("gate_up_proj.weight"):
        return {
            name.replace("gate_up_proj", part): piece for part, piece in zip(["gate_proj", "up_proj"], tensor.chunk(2))
        }
    if config.model_type == "mixtral" and name.endswith("mlp.gate.weight"):
        return {name.replace("mlp.gate", "block_sparse_moe.gate"): tensor}
    return {name: tensor}


def make_case(name, config_class, model_class, overrides, seed):
    dtype = getattr(torch, overrides.get("dtype", "float32"))
    model = random_model(config_class, model_class, overrides, seed).to(dtype)
    shutil.rmtree(here / name, ignore_errors=True)
    model.save_pretrained(here / name)
    (here / name / "generation_config.json").unlink(missing_ok=True)
    length = 40
    tokens = torch.randint(0, base["vocab_size"], (2, length))
    positions = torch.tensor([[0], [50]]) + torch.arange(length)
    tensors = {"tokens": tokens, "positions": positions}
    kind = (getattr(model.config, "rope_parameters", None) or {}).get("rope_type", "")
    if kind in ("dynamic", "longrope"):
        rows = []
        for row in range(2):
            fresh = copy.deepcopy(model)  # a copy, because "dynamic" scaling remembers its longest text
            with torch.no_grad():
                rows.append(
                    torch.stack(
                        [
                            fresh(tokens[row : row + 1, : n + 1], position_ids=positions[row : row + 1, : n + 1])
                            .logits[0, -1]
                            .float()
                            for n in range(length)
                        ]
                    )
                )
        tensors["stepwise"] = torch.stack(rows)
    logits = model(tokens, position_ids=positions).logits
    tensors["logits"] = logits.detach().float()
    if dtype == torch.float32:
        loss = -logits.log_softmax(-1)[:, :-1].gather(-1, tokens[:, 1:, None]).mean()
        loss.backward()
        tensors["loss"] = loss.detach().reshape(1)
        for parameter, p in model.named_parameters():
            tensors |= {f"grad.{part}": piece for part, piece in visited(parameter, p.grad, model.config).items()}
    save_file({k: v.contiguous().clone() for k, v in tensors.items()}, here / f"{name}.safetensors")
    print(
        name,
        "largest logit",
        round(logits.abs().max().item(), 3),
        "parameters",
        sum(p.numel() for p in model.parameters()),
    )


here.mkdir(exist_ok=True)
# The index in `cases` determines the seed, so a new case must be appended at the end.
for i, (name, (config_class, model_class, overrides)) in enumerate(cases.items()):
    if len(sys.argv) == 1 or name in sys.argv[1:]:
        make_case(name, config_class, model_class, overrides, seed=300 + i)
