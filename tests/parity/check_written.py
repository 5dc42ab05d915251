#!/usr/bin/env python3
"""Checks that transformers loads the models that specdec writes, whole and with a layer removed, and computes the same
logits. Pinned: transformers 5.23.0, torch 2.11.0.

    SPECDEC_PARITY_WRITE=DIR build/tests/parity_test --gtest_filter='WrittenModels.*'
    python check_written.py DIR
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)
failed = 0
for directory in sorted(Path(sys.argv[1]).iterdir()):
    expected = load_file(directory / "expected.safetensors")
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, attn_implementation="eager", output_loading_info=True, dtype="auto", ignore_mismatched_sizes=False
    )
    with torch.no_grad():
        logits = model.eval()(expected["tokens"], position_ids=expected["positions"]).logits.float()
    error, scale = (logits - expected["logits"]).abs().max().item(), expected["logits"].abs().max().item()
    tolerance = {torch.float32: 1e-4, torch.float16: 1e-2 * scale, torch.bfloat16: 4e-2 * scale}[model.dtype]
    wrong = error > tolerance or info["missing_keys"] or info["unexpected_keys"]
    failed += bool(wrong)
    print(
        f"{directory.name:40} {str(model.dtype):15} {error:.1e}",
        "WRONG" if wrong else "",
        {k: v for k, v in info.items() if v} if wrong else "",
    )
print("failed:", failed)
sys.exit(failed != 0)
