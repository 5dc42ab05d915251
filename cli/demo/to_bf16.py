#!/usr/bin/env python3
"""Rounds a trained fp32 model directory to bf16 (to nearest, ties to even), so that both embedded targets fit in the
repository.

    to_bf16.py RUN/draft OUT
"""

import json
import shutil
import struct
import sys
from pathlib import Path

import numpy as np

source, out = map(Path, sys.argv[1:])
out.mkdir(parents=True, exist_ok=True)
data = (source / "model.safetensors").read_bytes()
size = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
new, parts, offset = {"__metadata__": {"format": "pt"}}, [], 0
for name, entry in sorted(header.items()):
    if name == "__metadata__":
        continue
    begin, end = entry["data_offsets"]
    bits = np.frombuffer(body[begin:end], dtype="<u4").astype(np.uint64)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    new[name] = {"dtype": "BF16", "shape": entry["shape"], "data_offsets": [offset, offset + len(rounded)]}
    parts.append(rounded)
    offset += len(rounded)
text = json.dumps(new, separators=(",", ":")).encode()
text += b" " * (-len(text) % 8)
(out / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
config = json.loads((source / "config.json").read_text())
config["dtype"] = config["torch_dtype"] = "bfloat16"
(out / "config.json").write_text(json.dumps(config, indent=1) + "\n")
for file in source.iterdir():
    if file.name not in ("model.safetensors", "config.json", "specdec.json"):
        shutil.copyfile(file, out / file.name)
