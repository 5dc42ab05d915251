"""Measures whether distill's defaults are near the best batch size and learning rate. The script trains with many cells
(a cell is a pair of batch size and learning rate) on one target. Then it trains with the best cell and with the
defaults on new seeds. Runs are limited by time, so nothing else may run on the machine.

  python3 tests/bench/distill_defaults.py BUILD stories|demo [--seconds 40] [--batches 512,2048,4096]
      [--rates 0.003,0.012,0.024] [--sweep-seeds 1] [--seeds 11,12,13] [--best BATCH,RATE] [--out FILE]

`stories` is stories260K with its own stories, which are in ../shared (SPECDEC_SHARED). `demo` is the demo's target with
a day of its traffic. The draft is prune:1. Prints one JSON object: the acceptance of every cell on held-out rows, the
mean acceptance on the fresh seeds, and `behind` = the best cell's mean minus that of the defaults (wanted: at most
0.02). --best skips the sweep."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("SPECDEC_SHARED", SOURCE.parent / "shared"))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("target", choices=["stories", "demo"])
    p.add_argument("--seconds", type=int, default=40)
    p.add_argument("--batches", default="512,2048,4096")
    p.add_argument("--rates", default="0.003,0.012,0.024")
    p.add_argument("--sweep-seeds", default="1")
    p.add_argument("--seeds", default="11,12,13")
    p.add_argument("--best", help="BATCH,RATE of an earlier sweep")
    p.add_argument("--out", type=Path)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        specdec = str(o.build / "bin/specdec")
        target = SHARED / "data/models/stories260K" if o.target == "stories" else o.build / "share/specdec/demo/target"
        source, ingest = (
            SHARED / "data/tinystories-text/tinystories_sample_2MB.txt",
            ["--min-chars", "101", "--max-length", "256", "--no-redact"],
        )
        if o.target == "demo":
            source, ingest = work / "day-1.jsonl", ["--holdout", "0.06"]
            source.write_bytes(
                subprocess.run([specdec, "demo", "traffic", "--count", "3000"], check=True, capture_output=True).stdout
            )
        subprocess.run(
            [
                specdec,
                "-q",
                "data",
                "ingest",
                str(source),
                "--target",
                str(target),
                *ingest,
                "--out",
                str(work / "data"),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        runs = 0

        def train(seed, *flags):
            nonlocal runs
            runs += 1
            command = [
                specdec,
                "--json",
                "-q",
                "distill",
                "--target",
                target,
                "--data",
                work / "data",
                "--draft",
                "prune:1",
                "--time-limit",
                f"{o.seconds}s",
                "--seed",
                seed,
                *(["--dtype", "fp32"] if o.target == "demo" else []),
                "--out",
                work / f"run-{runs}",
                *flags,
            ]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            if done.returncode not in (0, 3):
                sys.exit(f"distill ended with {done.returncode}: {done.stderr[-500:]}")
            result = json.loads(done.stdout)
            subprocess.run(["rm", "-rf", str(work / f"run-{runs}")])
            row = {
                "seed": int(seed),
                "flags": " ".join(flags),
                "acceptance": round(result["acceptance"]["after"]["value"], 4),
                "steps": result["training"]["steps"],
                "batch_tokens": result["options"]["batch_tokens"] * result["options"]["accumulate"],
                "learning_rate": result["options"]["learning_rate"],
            }
            print(json.dumps(row), file=sys.stderr, flush=True)
            return row

        mean = lambda rows: sum(r["acceptance"] for r in rows) / len(rows)
        cells = {}
        if o.best:
            best = tuple(o.best.split(","))
        else:
            for batch in o.batches.split(","):
                for rate in o.rates.split(","):
                    cells[batch, rate] = [
                        train(seed, "--batch-tokens", batch, "--lr", rate) for seed in o.sweep_seeds.split(",")
                    ]
            best = max(cells, key=lambda cell: mean(cells[cell]))
        fresh = o.seeds.split(",")
        chosen = [train(seed, "--batch-tokens", best[0], "--lr", best[1]) for seed in fresh]
        default = [train(seed) for seed in fresh]
        result = {
            "schema": "specdec.bench-distill-defaults/1",
            "target": o.target,
            "seconds": o.seconds,
            "cells": {",".join(k): round(mean(v), 4) for k, v in cells.items()},
            "best_cell": ",".join(best),
            "best": round(mean(chosen), 4),
            "defaults": round(mean(default), 4),
            "behind": round(mean(chosen) - mean(default), 4),
            "runs": chosen + default,
        }
        print(json.dumps(result))
        if o.out:
            o.out.write_text(json.dumps(result, indent=1) + "\n")
        sys.exit(0 if result["behind"] <= 0.02 else 1)


main()
