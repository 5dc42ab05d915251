"""Measures whether the controller of K is ever slower than plain decoding, and how near it comes to the best fixed K,
from one run of `specdec bench` over drafts, K and batch sizes.

  python3 tests/bench/never_a_loss.py BUILD --target DIR --draft good=DIR --draft mediocre=DIR --data DATA
      [--batches 1,2,4,8,16,32,64] [--out FILE]

DATA is an output of `data ingest` for the target. A random draft with the shapes of the smallest draft is added. Prints
one JSON object with a row for every draft and batch size. `plain` is the tokens per second of plain decoding. Every
speed-up is relative to a plain run of the same prompts, whose steps alternate with those of the measured run. `fixed`
has the speed-up of every fixed K, and `to_plain` that of `--k auto` (wanted: at least 0.97 for every draft).
`to_best_k` is `to_plain` divided by the best speed-up of a fixed K, or by 1 if that is larger (wanted: at least 0.95
for the first draft). `formula` is the predicted speed-up of a fixed K divided by the measured one (wanted: within 10 %
of 1)."""

import argparse
import json
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import made_models


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--target", type=Path, required=True)
    p.add_argument("--draft", action="append", required=True, help="NAME=DIR; the first is the good one")
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--batches", default="1,2,4,8,16,32,64")
    p.add_argument("--ks", default="1,2,3,4,6,8")
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--tokens", type=int, default=128)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--temperature", type=float, default=1)
    p.add_argument("--out", type=Path)
    o = p.parse_args()
    work = Path(tempfile.mkdtemp())
    drafts = dict(d.split("=", 1) for d in o.draft)
    good = next(iter(drafts))
    smallest = min(drafts.values(), key=lambda d: sum(f.stat().st_size for f in Path(d).glob("*.safetensors")))
    drafts["random"] = str(made_models.worsen(smallest, work / "random", math.inf))
    command = [
        o.build / "bin/specdec",
        "--json",
        "bench",
        "--target",
        o.target,
        "--data",
        o.data,
        "--split",
        "all",
        "--out",
        work / "bench",
        "--batches",
        o.batches,
        "--ks",
        o.ks + ",auto",
        "--prompts",
        o.prompts,
        "--tokens",
        o.tokens,
        "--threads",
        o.threads,
        "--dtype",
        o.dtype,
        "--temperature",
        o.temperature,
        "--allow-stale",
        *(x for d in drafts.values() for x in ("--draft", d)),
    ]
    run = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    if run.returncode not in (0, 3):
        sys.exit(f"specdec bench ended with {run.returncode}")
    report = json.loads(run.stdout)
    names = {directory: name for name, directory in drafts.items()}
    rows, formula = [], []
    for batch in map(int, o.batches.split(",")):
        here = [r for r in report["rows"] if r["batch"] == batch]
        plain = next(r for r in here if r["mode"] == "normal")["tokens_per_second"]
        for directory, name in names.items():
            mine = [r for r in here if r["draft"] == directory]
            fixed = {str(r["k"]): r["speedup"] for r in mine if r["k"] != "auto"}
            auto = next(r for r in mine if r["k"] == "auto")
            formula += [r["predicted_speedup"] / r["speedup"] for r in mine if r["predicted_speedup"]]
            rows.append(
                {
                    "draft": name,
                    "batch": batch,
                    "plain": round(plain, 1),
                    "fixed": {k: round(v, 3) for k, v in fixed.items()},
                    "drafted_per_step": round(auto["drafted"] / max(1, auto["tokens"]) * auto["length"], 2),
                    "length": round(auto["length"], 2),
                    "to_plain": round(auto["speedup"], 3),
                    "interval": auto["ci"],
                    "to_best_k": round(auto["speedup"] / max(1, *fixed.values()), 3),
                    "formula": {
                        str(r["k"]): round(r["predicted_speedup"] / r["speedup"], 3)
                        for r in mine
                        if r["predicted_speedup"]
                    },
                }
            )
    result = {
        "schema": "specdec.bench-never-a-loss/1",
        "rows": rows,
        "least_to_plain": min(r["to_plain"] for r in rows),
        "least_to_best_k_of_" + good: min(r["to_best_k"] for r in rows if r["draft"] == good),
        "formula_to_measured": {
            "least": round(min(formula), 3),
            "most": round(max(formula), 3),
            "within_10_percent": f"{sum(abs(f - 1) <= 0.1 for f in formula)} of {len(formula)}",
        }
        if formula
        else None,
        "lossless": run.returncode == 0,
    }
    text = json.dumps(result)
    text = text.replace('{"draft"', '\n {"draft"').replace('], "least', '],\n "least')
    print(text)
    if o.out:
        o.out.write_text(text + "\n")


main()
