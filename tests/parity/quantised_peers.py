#!/usr/bin/env python3
"""Makes quantised checkpoints with random codes and shapes, and their weights as transformers dequantises them: FP8
with its own code, compressed-tensors with the package of that name, GPTQ and AWQ with GPTQModel. parity_test
(QuantisedPeers) compares these weights with specdec's, and damages every part of the checkpoints.

quantised_peers.py FOLDER [--cases 60] [--seed 1] writes
FOLDER/<case>/             config.json, model.safetensors
FOLDER/<case>.safetensors  the weight of every quantised matrix, as transformers has it
It needs transformers, optimum, gptqmodel and compressed-tensors; tests/parity/quantisers.txt has the versions.
"""

import argparse
import json
import random
import shutil
from pathlib import Path

import torch
import transformers
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from safetensors.torch import save_file

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the output whose value is in the i-th nibble, lowest first


def packed(integers, bits, dimension, order=None):
    """Packs unsigned integers of `bits` bits into int32. Each int32 holds 32 / bits neighbours along `dimension`."""
    count = 32 // bits
    moved = integers.movedim(dimension, -1).reshape(*integers.movedim(dimension, -1).shape[:-1], -1, count)
    moved = moved[..., order or list(range(count))].to(torch.int64) << (torch.arange(count) * bits)
    total = moved.sum(-1)
    return torch.where(total >= 2**31, total - 2**32, total).to(torch.int32).movedim(-1, dimension).contiguous()


def integers(draw, low, high, shape):
    return torch.randint(low, high, shape, generator=draw)


def scales(draw, shape, dtype):
    return (torch.rand(shape, generator=draw) * 0.05 + 0.001).to(dtype)


def fp8(shape, draw, setting):
    codes = integers(draw, 0, 256, shape).to(torch.uint8)
    codes[(codes & 127) == 127] = 0  # replaces NaN
    parts = {"weight": codes.view(torch.float8_e4m3fn)}
    if setting["quant_method"] == "compressed-tensors":
        by_row = setting["config_groups"]["group_0"]["weights"]["strategy"] == "channel"
        parts["weight_scale"] = scales(draw, (shape[0], 1) if by_row else (1,), torch.float16)
        return parts
    block = setting["weight_block_size"]
    parts["weight_scale_inv"] = scales(draw, tuple(-(-n // b) for n, b in zip(shape, block)), torch.float32)
    return parts


def gptq(shape, draw, setting):
    outputs, inputs = shape
    bits, size = setting["bits"], setting["group_size"]
    size = inputs if size == -1 else size
    groups = inputs // size
    # Format "gptq" stores each zero point minus one, so 0 is stored as 2^bits - 1. GPTQModel's conversion of this
    # stored value carries over into the neighbouring zero point. So zero points of 0 are not drawn for this format.
    offset = 0 if setting["checkpoint_format"] == "gptq_v2" else 1
    zeros = integers(draw, offset, 2**bits, (groups, outputs))
    if setting["sym"]:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
    index = torch.arange(inputs) // size
    if setting["desc_act"]:
        index = index[torch.randperm(inputs, generator=draw)]
    return {
        "qweight": packed(integers(draw, 0, 2**bits, (inputs, outputs)), bits, 0),
        "qzeros": packed((zeros - offset) % 2**bits, bits, 1),
        "scales": scales(draw, (groups, outputs), torch.float16),
        "g_idx": index.to(torch.int32),
    }


def awq(shape, draw, setting):
    outputs, inputs = shape
    groups = inputs // setting["group_size"]
    return {
        "qweight": packed(integers(draw, 0, 16, (inputs, outputs)), 4, 1, AWQ_ORDER),
        "qzeros": packed(integers(draw, 0, 16, (groups, outputs)), 4, 1, AWQ_ORDER),
        "scales": scales(draw, (groups, outputs), torch.float16),
    }


def drawn_setting(method, draw):
    if method == "fp8":
        block = [draw.choice([16, 32, 64]), draw.choice([16, 32, 64])]  # transformers requires whole blocks
        return dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=block)
    if method == "compressed-tensors":
        weights = dict(num_bits=8, type="float", strategy=draw.choice(["channel", "tensor"]), symmetric=True)
        group = dict(targets=["Linear"], weights=weights)
        return dict(quant_method=method, format="float-quantized", ignore=["lm_head"], config_groups={"group_0": group})
    if method == "awq":
        return dict(quant_method="awq", bits=4, group_size=draw.choice([16, 32, 64]), zero_point=True, version="gemm")
    return dict(
        quant_method="gptq",
        bits=draw.choice([4, 8]),
        group_size=draw.choice([-1, 16, 32, 64]),
        desc_act=draw.random() < 0.4,
        sym=draw.random() < 0.5,
        checkpoint_format=draw.choice(["gptq", "gptq_v2"]),
    )


def drawn_config(draw):
    kv = draw.choice([1, 2, 4])
    heads, width = kv * draw.choice([1, 2]), draw.choice([32, 64])
    return dict(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        vocab_size=40,
        hidden_size=64 * draw.choice([1, 2, 3]),
        intermediate_size=64 * draw.choice([1, 2, 5]),
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=width if heads * width % 64 == 0 and kv * width % 64 == 0 else 64,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        hidden_act="silu",
        attention_bias=False,
        tie_word_embeddings=False,
        torch_dtype="float16",
    )


def shapes(config):
    hidden, inner, width = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, values = config["num_attention_heads"] * width, config["num_key_value_heads"] * width
    layer = "model.layers.0."
    matrices = {
        layer + "self_attn.q_proj": (queries, hidden),
        layer + "self_attn.k_proj": (values, hidden),
        layer + "self_attn.v_proj": (values, hidden),
        layer + "self_attn.o_proj": (hidden, queries),
        layer + "mlp.gate_proj": (inner, hidden),
        layer + "mlp.up_proj": (inner, hidden),
        layer + "mlp.down_proj": (hidden, inner),
    }
    plain = {
        "model.embed_tokens.weight": (config["vocab_size"], hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (config["vocab_size"], hidden),
        layer + "input_layernorm.weight": (hidden,),
        layer + "post_attention_layernorm.weight": (hidden,),
        layer + "self_attn.q_norm.weight": (width,),
        layer + "self_attn.k_norm.weight": (width,),
    }
    return matrices, plain


def dequantised(folder, setting, matrices):
    """Loads a checkpoint with transformers. Returns its quantised matrices, dequantised to the values that transformers
    computes with."""
    method = setting["quant_method"]
    options = {key: value for key, value in setting.items() if key != "quant_method"}
    if method == "fp8":
        how = transformers.FineGrainedFP8Config(weight_block_size=setting["weight_block_size"], dequantize=True)
    elif method == "gptq":
        how = transformers.GPTQConfig(**options, backend="torch")
    elif method == "awq":
        how = transformers.AwqConfig(bits=4, group_size=setting["group_size"], backend="torch_awq")
    else:
        how = transformers.CompressedTensorsConfig(**options, run_compressed=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float16, device_map="cpu", quantization_config=how
    )
    modules = dict(model.named_modules())
    out = {}
    for name, shape in matrices.items():
        module = modules[name]
        if method == "awq":
            parts = module.qweight, module.qzeros, module.scales
            weight = dequantize_gemm(*parts, module.bits, module.group_size).T
        else:
            weight = module.dequantize_weight().T if method == "gptq" else module.weight
        assert weight.shape == shape and weight.dtype == torch.float16, (name, weight.shape, weight.dtype)
        out[name + ".weight"] = weight.detach().to(torch.float32).contiguous()
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    makers = {"fp8": fp8, "gptq": gptq, "awq": awq, "compressed-tensors": fp8}
    for number in range(args.cases):
        draw = random.Random(f"{args.seed}/{number}")
        numbers = torch.Generator().manual_seed(draw.randrange(2**31))
        method = list(makers)[number % len(makers)]
        setting, config = drawn_setting(method, draw), drawn_config(draw)
        matrices, plain = shapes(config)
        tensors = {name: (torch.randn(s, generator=numbers) * 0.2).to(torch.float16) for name, s in plain.items()}
        for name, shape in matrices.items():
            for part, value in makers[method](shape, numbers, setting).items():
                tensors[f"{name}.{part}"] = value
        case = args.folder / f"{number:03d}-{method}"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir(parents=True)
        (case / "config.json").write_text(json.dumps(config | {"quantization_config": setting}, indent=1) + "\n")
        save_file(tensors, case / "model.safetensors", metadata={"format": "pt"})
        save_file(dequantised(case, setting, matrices), f"{case}.safetensors")
        print(case.name, setting, flush=True)


if __name__ == "__main__":
    main()
