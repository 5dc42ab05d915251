"""Writes golden/blocks.json: blocks of every type that specdec reads with the values that gguf-py gives them, and
values with the blocks that gguf-py makes of them. What goes in is hexadecimal, what comes out is Base64; fp32 is
little-endian.

Needs Python 3.10, numpy 2.4.6 and gguf 0.19.0:

  python3 tests/base/gguf/blocks_golden.py
"""

import base64
import json
import os

import gguf
import numpy as np

rng = np.random.default_rng(20261128)
SIMPLE = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
OF_256 = ["Q4_K", "Q5_K", "Q6_K"]
SCALES_AT = {"Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
# fp16 codes: zeros, the least and the largest subnormals, the least normal number, 1, -1.5, the largest numbers.
CODES = [0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x8155, 0x0400, 0x3C00, 0xBE00, 0x7BFF, 0xFBFF]


def text(array):
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def dequantised(name, data):
    values = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name])
    return {"type": name, "bytes": data.tobytes().hex(), "values": text(values)}


def blocks(name, codes, fill):
    """Makes one block for each code: its scales have this code, or that of a neighbour, and the other bytes are `fill`,
    or random."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    shape = (len(codes), size)
    data = rng.integers(0, 256, shape, dtype=np.uint8) if fill is None else np.full(shape, fill, np.uint8)
    for i, at in enumerate(SCALES_AT.get(name, [0])):
        data[:, at : at + 2] = np.roll(np.array(codes, "<u2"), i).view(np.uint8).reshape(-1, 2)
    return data.reshape(1, -1)


dequantise = []
for name in SIMPLE:
    dequantise += [dequantised(name, blocks(name, CODES, None))]
    dequantise += [dequantised(name, blocks(name, [0xBE00], fill)) for fill in (0x00, 0xFF)]
for name in OF_256:
    dequantise += [dequantised(name, blocks(name, [0x0001, 0x8155, 0xBC01, 0x7BFF], None))]
    dequantise += [dequantised(name, blocks(name, [0xBE00], fill)) for fill in (0x00, 0xFF)]
dequantise += [dequantised("F16", np.array([CODES], "<u2").view(np.uint8))]
dequantise += [dequantised("BF16", np.array([[*CODES, 0x0080, 0x7F7F, 0xFF7F]], "<u2").view(np.uint8))]
dequantise += [dequantised("F32", np.array([[0.0, -0.0, 1e-45, -3.4e38, 0.1]], "<f4"))]


def quantised(name, values):
    values = np.array([values], dtype="<f4")
    data = gguf.quants.quantize(values, gguf.GGMLQuantizationType[name])
    return {"type": name, "values": values.tobytes().hex(), "bytes": text(data)}


# Ties between two neighbours, numbers around the ends of the ranges, and subnormals.
fp16 = [0, 1, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-11 + 2**-20, 65504, 65519.99, 2**-14, 2**-14 - 2**-25, 2**-24, 2**-25]
fp16 += [2**-25 + 2**-40, 3 * 2**-25, 1e-20, 1e-45, 0.1, 2047.5]
bf16 = [0, 1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3.38e38, 1e-45, 2**-133, 2**-134, 3 * 2**-134, 0.1]
quantise = [quantised("F16", [sign * x for x in fp16 for sign in (1, -1)])]
quantise += [quantised("BF16", [sign * x for x in bf16 for sign in (1, -1)]), quantised("F32", [0.1, -1e-45, 3e38])]
for name in ("Q8_0", "Q4_0"):
    first = [-127.0, *(i + 0.5 for i in range(31))]  # Q8_0 rounds halves away from zero
    for values in (
        rng.standard_normal(64),
        -np.abs(rng.standard_normal(32)) * 1e-4,
        rng.standard_normal(32) * 1e-6,  # subnormal scales
        rng.standard_normal(32) * 1e-9,  # scales that fp16 rounds to 0
        np.zeros(32),
        -np.zeros(32),
        first,
        [-x for x in first],
        [3.0, -3.0] * 16,  # the first of the largest gives the sign
        [0.0] * 31 + [-7.0],
        rng.uniform(-1, 1, 32) * 65519 * (127 if name == "Q8_0" else 8),
    ):
        quantise.append(quantised(name, values))

path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "golden", "blocks.json")
with open(path, "w") as f:
    json.dump({"dequantise": dequantise, "quantise": quantise}, f, indent=0)
    f.write("\n")
