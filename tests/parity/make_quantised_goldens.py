#!/usr/bin/env python3
"""Makes golden/quantised/: a tiny Qwen2 in every packing that specdec reads, and its dequantised weights. This script
computes the dequantised weights with NumPy from the packed arrays alone. Pinned: numpy 2.4.2, safetensors 0.8.0, torch
2.11.0 (for its 8-bit float type).

golden/quantised/<case>/             config.json, model.safetensors
golden/quantised/<case>.safetensors  the weights of every parameter, fp32

The cases are fp8_block, fp8_tensor, fp8_channel (compressed-tensors), gptq (symmetric, checkpoint_format "gptq"),
gptq_act_order (g_idx, asymmetric, checkpoint_format "gptq_v2"), gptq_8bit (one group), and awq.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

here = Path(__file__).resolve().parent / "golden" / "quantised"
random = np.random.default_rng(7)
hidden, heads, kv, width, inner, vocab, group = 32, 4, 2, 8, 48, 40, 8
config = dict(
    architectures=["Qwen2ForCausalLM"],
    model_type="qwen2",
    vocab_size=vocab,
    hidden_size=hidden,
    intermediate_size=inner,
    num_hidden_layers=1,
    num_attention_heads=heads,
    num_key_value_heads=kv,
    max_position_embeddings=64,
    rms_norm_eps=1e-6,
    rope_theta=10000.0,
    hidden_act="silu",
    tie_word_embeddings=False,
    use_sliding_window=False,
    torch_dtype="float16",
)
attention, mlp = "model.layers.0.self_attn.", "model.layers.0.mlp."
matrices = {
    attention + "q_proj": (heads * width, hidden),
    attention + "k_proj": (kv * width, hidden),
    attention + "v_proj": (kv * width, hidden),
    attention + "o_proj": (hidden, heads * width),
    mlp + "gate_proj": (inner, hidden),
    mlp + "up_proj": (inner, hidden),
    mlp + "down_proj": (hidden, inner),
}
plain = {
    "model.embed_tokens.weight": (vocab, hidden),
    "model.norm.weight": (hidden,),
    "lm_head.weight": (vocab, hidden),
    "model.layers.0.input_layernorm.weight": (hidden,),
    "model.layers.0.post_attention_layernorm.weight": (hidden,),
    attention + "q_proj.bias": (heads * width,),
    attention + "k_proj.bias": (kv * width,),
    attention + "v_proj.bias": (kv * width,),
}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]  # the output whose value is in the i-th nibble, lowest first


def pack(integers, bits, axis, order=None):
    """Packs unsigned integers of `bits` bits into int32. Each int32 holds 32 / bits neighbours along `axis`."""
    count = 32 // bits
    moved = np.moveaxis(integers.astype(np.uint64), axis, -1)
    moved = moved.reshape(*moved.shape[:-1], -1, count)[..., order or list(range(count))]
    packed = (moved << (np.arange(count, dtype=np.uint64) * bits)).sum(-1).astype(np.uint32).view(np.int32)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis))


def unpack(packed, bits, axis, order=None):
    count = 32 // bits
    moved = np.moveaxis(packed.view(np.uint32), axis, -1)
    fields = (moved[..., None] >> (np.arange(count, dtype=np.uint32) * bits)) & (2**bits - 1)
    if order:
        fields = fields[..., np.argsort(order)]
    return np.ascontiguousarray(np.moveaxis(fields.reshape(*moved.shape[:-1], -1), -1, axis)).astype(np.int64)


def e4m3(codes):
    """Converts E4M3 bytes to numbers by the format's definition: sign, 4 bits of exponent with bias 7, 3 bits of
    mantissa, subnormals."""
    codes = codes.astype(np.int64)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8.0 * 2.0**-6, (1 + mantissa / 8.0) * 2.0 ** (exponent - 7.0))
    return np.where(codes & 128, -magnitude, magnitude).astype(np.float32)


def fp8(name, shape, scale_shape, scale_name, repeat):
    codes = random.integers(0, 256, shape, dtype=np.uint8)
    codes[(codes & 127) == 127] = 0  # replaces NaN
    scale = np.asarray(random.random(scale_shape) * 0.01 + 0.001, dtype=np.float32)
    stored = {
        name + ".weight": torch.from_numpy(codes).view(torch.float8_e4m3fn),
        name + "." + scale_name: torch.from_numpy(scale),
        name + ".input_scale": torch.ones(1),
    }
    return stored, e4m3(codes) * repeat(scale)


def fp8_block(name, shape):
    block = (16, 24)
    scale_shape = tuple(-(-n // b) for n, b in zip(shape, block))
    return fp8(
        name,
        shape,
        scale_shape,
        "weight_scale_inv",
        lambda s: np.kron(s, np.ones(block, np.float32))[: shape[0], : shape[1]],
    )


def gptq(name, shape, bits=4, symmetric=True, act_order=False, offset=1, size=group):
    outputs, inputs = shape
    size = size or inputs
    groups = inputs // size
    zeros = np.full((groups, outputs), 2 ** (bits - 1)) if symmetric else random.integers(0, 2**bits, (groups, outputs))
    if not symmetric:
        zeros[0, :2] = 0  # format "gptq" stores zero point 0 as 2^bits - 1
    scales = (random.random((groups, outputs)) * 0.05 + 0.01).astype(np.float16)
    index = np.arange(inputs) // size
    if act_order:
        random.shuffle(index)
    packed = pack(random.integers(0, 2**bits, (inputs, outputs)), bits, 0)
    packed_zeros = pack((zeros - offset) % 2**bits, bits, 1)
    stored = {
        name + ".qweight": packed,
        name + ".qzeros": packed_zeros,
        name + ".scales": scales,
        name + ".g_idx": index.astype(np.int32),
    }
    if name.endswith("down_proj"):
        stored[name + ".bias"] = np.zeros(outputs, np.float16)  # as some quantisers do
    zero = (unpack(packed_zeros, bits, 1) + offset) % 2**bits
    weight = scales.astype(np.float32)[index] * (unpack(packed, bits, 0) - zero[index])
    return {k: torch.from_numpy(v) for k, v in stored.items()}, weight.T


def awq(name, shape):
    outputs, inputs = shape
    scales = (random.random((inputs // group, outputs)) * 0.05 + 0.01).astype(np.float16)
    packed = pack(random.integers(0, 16, (inputs, outputs)), 4, 1, AWQ_ORDER)
    zeros = pack(random.integers(0, 16, (inputs // group, outputs)), 4, 1, AWQ_ORDER)
    index = np.arange(inputs) // group
    weight = scales.astype(np.float32)[index] * (
        unpack(packed, 4, 1, AWQ_ORDER) - unpack(zeros, 4, 1, AWQ_ORDER)[index]
    )
    stored = {name + ".qweight": packed, name + ".qzeros": zeros, name + ".scales": scales}
    return {k: torch.from_numpy(v) for k, v in stored.items()}, weight.T


compressed = dict(
    quant_method="compressed-tensors",
    format="float-quantized",
    ignore=["lm_head"],
    config_groups=dict(
        group_0=dict(targets=["Linear"], weights=dict(num_bits=8, type="float", strategy="channel", symmetric=True))
    ),
)
cases = {
    "fp8_block": (
        dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[16, 24]),
        fp8_block,
    ),
    "fp8_tensor": (
        dict(quant_method="fp8", activation_scheme="static"),
        lambda n, s: fp8(n, s, (), "weight_scale", lambda x: x),
    ),
    "fp8_channel": (compressed, lambda n, s: fp8(n, s, (s[0], 1), "weight_scale", lambda x: x)),
    "gptq": (dict(quant_method="gptq", bits=4, group_size=group, desc_act=False, sym=True), gptq),
    "gptq_act_order": (
        dict(quant_method="gptq", bits=4, group_size=group, desc_act=True, sym=False, checkpoint_format="gptq_v2"),
        lambda n, s: gptq(n, s, symmetric=False, act_order=True, offset=0),
    ),
    "gptq_8bit": (
        dict(quant_method="gptq", bits=8, group_size=-1, desc_act=False, sym=False),
        lambda n, s: gptq(n, s, bits=8, symmetric=False, size=0),
    ),
    "awq": (dict(quant_method="awq", bits=4, group_size=group, zero_point=True, version="gemm"), awq),
}
here.mkdir(parents=True, exist_ok=True)
for case, (quantization, make) in cases.items():
    stored, weights = {}, {}
    for name, shape in plain.items():
        values = (random.standard_normal(shape) * 0.2).astype(np.float16)
        stored[name], weights[name] = torch.from_numpy(values), values.astype(np.float32)
    for name, shape in matrices.items():
        parts, weight = make(name, shape)
        assert weight.shape == shape, (name, weight.shape)
        stored |= parts
        weights[name + ".weight"] = weight
    shutil.rmtree(here / case, ignore_errors=True)
    (here / case).mkdir()
    (here / case / "config.json").write_text(
        json.dumps(config | {"quantization_config": quantization}, indent=1) + "\n"
    )
    save_file(
        {k: v.contiguous() for k, v in stored.items()}, here / case / "model.safetensors", metadata={"format": "pt"}
    )
    save_file(
        {k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.float32)) for k, v in weights.items()},
        here / f"{case}.safetensors",
    )
    print(case, {k.split(".")[-1]: (str(v.dtype), tuple(v.shape)) for k, v in stored.items() if "q_proj" in k})
