#!/usr/bin/env python3
"""run.py [--out FILE] [--tree DIR] [--without-sanitizer]: runs everything that needs a GPU, on a machine that has one,
and writes one JSON file (gpu.json) with what was found.

It is part of the tree of `make dist`, as share/specdec/gpu/run.py, and takes that tree; DIR is another one, or a build
folder. The machine needs a driver and a Python environment with torch 2.11 (the one that runs this, or the one whose
torch/lib SPECDEC_TORCH_LIB names). It runs
  specdec doctor: the devices, the bandwidth of copies, and the self-test of the kernels;
  gpu_test: the self-test at more shapes, passes of all families beside the CPU's, greedy text with a draft and without,
    drawn tokens beside the target's distribution, and the speed of products and of passes of an 8B shape;
  the self-test under compute-sanitizer's memcheck, racecheck and synccheck, where that is installed.
Exit code: 0 if all of it passed, 1 if not, 77 without a GPU, with a line that says why."""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

SKIPPED = 77
SANITIZER_ERROR = 99
HOUR = 3600


def torch_lib():
    """Returns the torch/lib that gpu_test is to use, or None if its own run path has to do."""
    if given := os.environ.get("SPECDEC_TORCH_LIB"):
        return Path(given)
    found = importlib.util.find_spec("torch")
    return Path(found.submodule_search_locations[0]) / "lib" if found else None


def environment(**more):
    variables = {**os.environ, **more}
    if lib := torch_lib():
        old = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = f"{lib}:{old}" if old else str(lib)
    return variables


def torch_version():
    lib = torch_lib()
    if lib and (lib.parent / "version.py").exists():
        for line in (lib.parent / "version.py").read_text().splitlines():
            if line.startswith("__version__"):
                return line.split("'")[1]
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return None


def driver():
    """Returns the driver's own description, which is a file on Linux."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None


def program(tree, *places):
    for place in places:
        if (tree / place).exists():
            return tree / place
    sys.exit(f"run.py: {tree} has none of {', '.join(places)}: give --tree a tree of `make dist` or a build folder")


def run_tests(gpu_test, work):
    """Runs gpu_test and returns its exit code, its tests and its figures."""
    figures, report = work / "figures.json", work / "tests.json"
    done = subprocess.run(
        [gpu_test, f"--gtest_output=json:{report}"],
        env=environment(SPECDEC_GPU_FIGURES=str(figures)),
        stdout=subprocess.PIPE,
        text=True,
        timeout=HOUR,
    )
    print(done.stdout, end="")
    if done.returncode == SKIPPED:
        sys.exit(SKIPPED)
    tests = []
    if report.exists():
        for suite in json.loads(report.read_text())["testsuites"]:
            for test in suite["testsuite"]:
                failures = [failure["failure"] for failure in test.get("failures", [])]
                tests.append(
                    {
                        "name": f"{suite['name']}.{test['name']}",
                        "passed": not failures,
                        "seconds": float(test["time"].rstrip("s")),
                        "failures": failures,
                    }
                )
    return done.returncode, tests, json.loads(figures.read_text()) if figures.exists() else {}


def run_doctor(specdec):
    variables = dict(os.environ)
    if lib := torch_lib():
        variables.setdefault("SPECDEC_TORCH_LIB", str(lib))
    done = subprocess.run([specdec, "--json", "doctor"], env=variables, stdout=subprocess.PIPE, text=True, timeout=HOUR)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = {"output": done.stdout[-2000:]}
    return {"exit_code": done.returncode, **found}


def run_sanitizer(gpu_test):
    """Runs the self-test under each tool of compute-sanitizer. Returns a text if that is not installed."""
    sanitizer = shutil.which("compute-sanitizer")
    if not sanitizer:
        return "compute-sanitizer is not installed"
    found = {}
    for tool in ("memcheck", "racecheck", "synccheck"):
        started = time.monotonic()
        done = subprocess.run(
            [sanitizer, "--tool", tool, "--error-exitcode", str(SANITIZER_ERROR), gpu_test, "--gtest_filter=Kernels.*"],
            env=environment(SPECDEC_GPU_FEW="1"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HOUR,
        )
        lines = [line for line in done.stdout.splitlines() if line.startswith("=========")]
        found[tool] = {
            "passed": done.returncode == 0,
            "exit_code": done.returncode,
            "seconds": time.monotonic() - started,
            "summary": lines[-1] if lines else "",
            "said": [] if done.returncode == 0 else done.stdout.splitlines()[-40:],
        }
        print(f"compute-sanitizer {tool}: exit {done.returncode}, {found[tool]['summary']}")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[3])
    parser.add_argument("--without-sanitizer", action="store_true")
    options = parser.parse_args()
    gpu_test = program(options.tree, "libexec/gpu_test", "tests/gpu_test")
    specdec = program(options.tree, "bin/specdec")

    started = time.monotonic()
    result = {"schema": "specdec.gpu_run/1", "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    with tempfile.TemporaryDirectory() as work:
        code, tests, figures = run_tests(gpu_test, Path(work))
    doctor = run_doctor(specdec)
    sanitizer = "left out" if options.without_sanitizer else run_sanitizer(gpu_test)
    passed = (
        code == 0
        and doctor["exit_code"] in (0, 3)
        and bool(doctor.get("gpus"))
        and not any(gpu["faults"] for gpu in doctor["gpus"])
        and (isinstance(sanitizer, str) or all(tool["passed"] for tool in sanitizer.values()))
    )
    result |= {
        "verdict": "pass" if passed else "fail",
        "seconds": time.monotonic() - started,
        "machine": {
            **figures.pop("device", {}),
            "driver": driver(),
            "torch": torch_version(),
            "python": platform.python_version(),
            "system": platform.platform(),
            "specdec": figures.pop("specdec", None),
        },
        "tests": tests,
        "gpu_test_exit_code": code,
        "figures": figures,
        "doctor": doctor,
        "sanitizer": sanitizer,
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{options.out}: {result['verdict']}, {sum(t['passed'] for t in tests)} of {len(tests)} tests passed")
    sys.exit(0 if passed else 1)


main()
