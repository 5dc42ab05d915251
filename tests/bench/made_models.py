"""Makes models for the benches from small real ones, with the standard library alone: wider ones that compute the same
function, and worse ones of the same shape.

  python3 tests/bench/made_models.py inflate SRC DST [--width 16] [--extra-layers 3]
      writes bf16; stories260K becomes a model of 93 M weights
  python3 tests/bench/made_models.py worsen  SRC DST [--noise 0.3]
      adds normal noise to each matrix, NOISE times as large as its root mean square; inf makes all weights random

`inflate` pads every dimension except head_dim and the vocabulary with zeros and appends layers that add nothing, so
that a model has the acceptance of a small trained pair and the cost of a large one. It supports the Llama family
only."""

import argparse
import array
import json
import math
import random
import shutil
import struct
from pathlib import Path


def read_tensors(file):
    """Reads a safetensors file of F32 or BF16. Returns a map from name to (shape, floats)."""
    data = file.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    out = {}
    for name, tensor in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        raw = data[begin:end]
        if tensor["dtype"] == "BF16":
            wide = bytearray(2 * len(raw))
            wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
            raw = bytes(wide)
        elif tensor["dtype"] != "F32":
            raise SystemExit(f"{file}: {name} is {tensor['dtype']}: only F32 and BF16 are read")
        out[name] = (tensor["shape"], array.array("f", raw))
    return out


def bf16(values):
    """Returns the bytes of the values rounded to bf16, to nearest with ties to even."""
    bits = array.array("I", values.tobytes())
    return array.array("H", (((x + 0x7FFF + ((x >> 16) & 1)) >> 16) & 0xFFFF for x in bits)).tobytes()


def write_tensors(file, tensors, dtype):
    """Writes a safetensors file. `tensors` maps a name to (shape, bytes)."""
    header, at = {}, 0
    for name, (shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(file, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, raw in tensors.values():
            out.write(raw)


def copy_rest(source, folder):
    shutil.copytree(
        source,
        folder,
        ignore=shutil.ignore_patterns("specdec.json", "*.safetensors*", "config.json"),
        copy_function=shutil.copyfile,
    )
    folder.chmod(0o755)


def inflate(source, folder, width, extra_layers):
    source, folder = Path(source), Path(folder)
    tensors = read_tensors(next(source.glob("*.safetensors")))
    config = json.loads((source / "config.json").read_text())
    copy_rest(source, folder)
    for name in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"):
        config[name] *= width
    layers = config["num_hidden_layers"]
    config |= {
        "num_hidden_layers": layers + extra_layers,
        "rms_norm_eps": config["rms_norm_eps"] / width,
        "dtype": "bfloat16",
    }
    config.pop("torch_dtype", None)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    vocab = config["vocab_size"]

    def padded(shape, values):
        if len(shape) == 1:
            return [shape[0] * width], bf16(array.array("f", (v / math.sqrt(width) for v in values))) + bytes(
                2 * shape[0] * (width - 1)
            )
        rows, columns = shape
        tall = 1 if rows == vocab else width
        raw = bf16(values)
        out = b"".join(
            raw[2 * r * columns : 2 * (r + 1) * columns] + bytes(2 * columns * (width - 1)) for r in range(rows)
        )
        return [rows * tall, columns * width], out + bytes(2 * rows * (tall - 1) * columns * width)

    out = {name: padded(*tensor) for name, tensor in tensors.items()}
    rng = random.Random(1)
    for layer in range(layers, layers + extra_layers):
        for name, (shape, raw) in [(n, t) for n, t in out.items() if n.startswith("model.layers.0.")]:
            adds_nothing = name.endswith(("o_proj.weight", "down_proj.weight"))
            # The values do not matter, because the layer adds nothing: 4,096 random numbers are repeated.
            some = bf16(array.array("f", (rng.gauss(0, 0.02) for _ in range(4096))))
            filled = bytes(len(raw)) if adds_nothing else (some * (len(raw) // len(some) + 1))[: len(raw)]
            out[name.replace("layers.0.", f"layers.{layer}.")] = (shape, filled)
    write_tensors(folder / "model.safetensors", out, "BF16")
    return folder


def worsen(source, folder, noise):
    source, folder = Path(source), Path(folder)
    tensors = read_tensors(next(source.glob("*.safetensors")))
    copy_rest(source, folder)
    shutil.copyfile(source / "config.json", folder / "config.json")
    rng, out = random.Random(7), {}
    for name, (shape, values) in tensors.items():
        if math.isinf(noise):
            values = array.array("f", (rng.gauss(0, 0.05) for _ in values))
        elif len(shape) > 1:
            spread = noise * math.sqrt(sum(v * v for v in values) / len(values))
            values = array.array("f", (v + rng.gauss(0, spread) for v in values))
        out[name] = (shape, values.tobytes())
    write_tensors(folder / "model.safetensors", out, "F32")
    return folder


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=["inflate", "worsen"])
    p.add_argument("source", type=Path)
    p.add_argument("folder", type=Path)
    p.add_argument("--width", type=int, default=16)
    p.add_argument("--extra-layers", type=int, default=3)
    p.add_argument("--noise", type=float, default=0.3)
    o = p.parse_args()
    if o.what == "inflate":
        inflate(o.source, o.folder, o.width, o.extra_layers)
    else:
        worsen(o.source, o.folder, o.noise)


if __name__ == "__main__":
    main()
