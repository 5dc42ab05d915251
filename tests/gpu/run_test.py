#!/usr/bin/env python3
"""run_test.py BUILD_DIR: tests run.py without a GPU: it skips with a reason, and writes what programs that only pretend
to have one say."""

import json
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

RUN = Path(__file__).resolve().with_name("run.py")
BUILD = Path(sys.argv[1]).resolve()

GPU_TEST = """#!/usr/bin/env python3
import json, os, sys
failure = os.environ.get("PRETEND_FAILURE")
few = "SPECDEC_GPU_FEW" in os.environ
if few:
    sys.exit(0)
test = {"name": "EqualTheirTwins", "time": "1.5s"}
if failure:
    test["failures"] = [{"failure": failure}]
report = next(word.partition("json:")[2] for word in sys.argv if word.startswith("--gtest_output="))
open(report, "w").write(json.dumps({"testsuites": [{"name": "Kernels", "testsuite": [test]}]}))
figures = {"device": {"name": "a GPU"}, "specdec": "1", "products": {"1 rows": {"share_of_copies": 0.8}}}
open(os.environ["SPECDEC_GPU_FIGURES"], "w").write(json.dumps(figures))
sys.exit(1 if failure else 0)
"""
SPECDEC = """#!/usr/bin/env python3
import json, os
faults = [{"kernel": "rope"}] if os.environ.get("PRETEND_FAULT") else []
print(json.dumps({"schema": "specdec.doctor/1", "gpus": [{"name": "a GPU", "faults": faults}]}))
"""
SANITIZER = """#!/bin/sh
echo "========= ERROR SUMMARY: ${PRETEND_ERRORS:-0} errors"
[ -z "$PRETEND_ERRORS" ] || exit 99
"""


def expect(condition, text):
    print("ok" if condition else "FAILED", text)
    if not condition:
        sys.exit(1)


def write_program(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def run(tree, out, *flags, **variables):
    return subprocess.run(
        [sys.executable, RUN, "--tree", tree, "--out", out, *flags],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=280,
    )


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    done = run(BUILD, work / "none.json", CUDA_VISIBLE_DEVICES="")
    expect(done.returncode == 77, f"without a GPU it ends with 77: {done.returncode} {done.stderr[-500:]}")
    expect("SKIPPED: " in done.stdout.splitlines()[-1], f"and says why: {done.stdout.strip()}")
    expect(not (work / "none.json").exists(), "and writes nothing")

    tree, bin_folder = work / "tree", work / "tools"
    write_program(tree / "libexec/gpu_test", GPU_TEST)
    write_program(tree / "bin/specdec", SPECDEC)
    write_program(bin_folder / "compute-sanitizer", SANITIZER)
    tools = {"PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = run(tree, work / "a.json", **tools)
    expect(done.returncode == 0, f"all passed: exit {done.returncode} {done.stderr[-500:]}")
    found = json.loads((work / "a.json").read_text())
    expect(found["verdict"] == "pass" and found["machine"]["name"] == "a GPU", "the machine and the verdict")
    expect(found["tests"][0]["name"] == "Kernels.EqualTheirTwins" and found["tests"][0]["seconds"] == 1.5, "the tests")
    expect(found["figures"] == {"products": {"1 rows": {"share_of_copies": 0.8}}}, "the figures")
    expect(set(found["sanitizer"]) == {"memcheck", "racecheck", "synccheck"}, "the sanitizer's tools")
    expect(found["machine"]["torch"] and found["machine"]["python"], "versions")

    for name, variables in (
        ("a test fails", {"PRETEND_FAILURE": "element 3 is 1, expected 2"}),
        ("doctor finds a fault", {"PRETEND_FAULT": "1"}),
        ("the sanitizer finds errors", {"PRETEND_ERRORS": "2"}),
    ):
        done = run(tree, work / "b.json", **tools, **variables)
        verdict = json.loads((work / "b.json").read_text())["verdict"]
        expect(done.returncode == 1 and verdict == "fail", f"{name}: exit {done.returncode}, {verdict}")
    done = run(tree, work / "c.json", "--without-sanitizer", PRETEND_ERRORS="2")
    expect(done.returncode == 0, "without the sanitizer")
    expect(json.loads((work / "c.json").read_text())["sanitizer"] == "left out", "and says so")
