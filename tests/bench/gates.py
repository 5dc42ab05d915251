"""Checks that the gate (`specdec validate`) notices a busy machine. Runs the gate several times on one model pair,
partly on an idle machine and partly beside a busy loop on every core.

  python3 tests/bench/gates.py BUILD --target DIR --draft DIR[+NOISE] --texts FILE [--gates 5] [--threads 2]
      [--dtype bf16] [--out FILE]

The texts are ingested once; every gate runs all its parts with a seed of its own. Prints one JSON object with every
gate's verdict, speed-up with its interval, seconds, and whether its text mentions load. For a pair whose true speed-up
is 1.5 the idle gates should pass without mentioning load, and no busy gate should say not_worth_it. Nothing else may
run on the machine."""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import made_models


def main():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a regular exit also ends the busy loops
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--target", type=Path, required=True)
    p.add_argument("--draft", required=True, help="DIR or DIR+NOISE")
    p.add_argument("--texts", type=Path, required=True)
    p.add_argument("--gates", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--flags", default="", help="more flags of validate")
    p.add_argument("--out", type=Path)
    o = p.parse_args()
    specdec, rows = str(o.build / "bin/specdec"), []
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        name, _, noise = o.draft.partition("+")
        draft = made_models.worsen(name, work / "draft", float(noise)) if noise else Path(name)
        ingest = [
            specdec,
            "-q",
            "data",
            "ingest",
            o.texts,
            "--target",
            o.target,
            "--min-chars",
            "101",
            "--max-length",
            "256",
            "--no-redact",
            "--out",
            work / "data",
        ]
        subprocess.run([str(c) for c in ingest], check=True, stdout=subprocess.DEVNULL)

        def gate(number, busy):
            out, begun = work / f"gate-{number}", time.monotonic()
            command = [
                specdec,
                "--json",
                "-q",
                "validate",
                "--target",
                o.target,
                "--draft",
                draft,
                "--data",
                work / "data",
                "--threads",
                o.threads,
                "--dtype",
                o.dtype,
                "--seed",
                number,
                *o.flags.split(),
                "--out",
                out,
            ]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            if done.returncode not in (0, 3, 4, 6):
                sys.exit(f"validate ended with {done.returncode}: {done.stderr[-1000:]}")
            report, page = json.loads((out / "report.json").read_text()), (out / "report.md").read_text()
            speed = report["speed"]
            rows.append(
                {
                    "busy": busy,
                    "code": done.returncode,
                    "verdict": report["verdict"],
                    "reason": report.get("reason"),
                    "seconds": round(time.monotonic() - begun, 1),
                    "speed": {k: v for k, v in speed.items() if not isinstance(v, list)},
                    "speaks_of_load": "busy" in page or "other processes" in page.split("##")[0],
                }
            )
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)

        for i in range(o.gates):
            gate(i + 1, False)
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
        try:
            for i in range(o.gates):
                gate(o.gates + i + 1, True)
        finally:
            for loop in loops:
                loop.kill()
    result = {
        "schema": "specdec.bench-gates/1",
        "rows": rows,
        "idle_pass": all(r["verdict"] == "pass" for r in rows if not r["busy"]),
        "busy_not_worth_it": sum(r["verdict"] == "not_worth_it" for r in rows if r["busy"]),
    }
    print(json.dumps(result))
    if o.out:
        o.out.write_text(json.dumps(result, indent=1) + "\n")


main()
