#!/usr/bin/env python3
"""nightly.py [PART…]: everything that is too long for `make test`, in one run with one summary (`make nightly`).

Parts, in this order (all of them if none is named):
  tools       fetches promtool into the cache folder (Debian's prometheus, unpacked and not installed)
  checks      the tests that `make test` skips without it; the engines' parsers too where SPECDEC_ENGINE_PACKAGES and SPECDEC_ENGINE_PYTHON are set
  faults      every fault point (SPECDEC_FAULTS=all)
  soak        the long soak (SPECDEC_SOAK_SECONDS, 3600 unless set)
  asan, tsan  the quick tests under the sanitizers (make asan, make tsan)
  fuzz        FUZZ_INPUTS inputs a target (1e7 unless set), the Rust half with coverage counters

A part that fails does not stop the others. What each one took and found is printed as it ends and written to build/nightly.json, its output to
build/nightly/PART.log. Exit code 1 when a part failed."""
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "nightly")
CACHE = os.environ.get("SPECDEC_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "specdec")
TOOLS = os.path.join(CACHE, "nightly-tools")
JOBS = os.environ.get("JOBS") or str(os.cpu_count() or 1)
CTEST = ["ctest", "--test-dir", "build", "--output-on-failure", "--no-tests=error", "-j", JOBS]


def run(log, command, **variables):
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    return subprocess.run(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, env=dict(os.environ, **variables)).returncode


def tools(log):
    folder = os.path.join(TOOLS, "prometheus")
    if os.path.exists(os.path.join(folder, "usr/bin/promtool")):
        return 0
    os.makedirs(folder, exist_ok=True)
    return run(log, ["bash", "-c", f"cd '{folder}' && apt-get download prometheus && dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb"])


def checks(log):
    promtool = os.path.join(TOOLS, "prometheus/usr/bin/promtool")
    rules = run(log, [promtool, "test", "rules", "tests/cli/monitoring/rules_test.yml"]) if os.path.exists(promtool) else 1
    return max(rules, run(log, [*CTEST, "-R", "engine_parsers|init_test"], PATH=os.path.dirname(promtool) + ":" + os.environ["PATH"]))


def faults(log):
    return run(log, [*CTEST, "-R", "base_test|data_test|package_test|distill_test|distill_run_test|bad_input|crash|loop_test|hub_test"], SPECDEC_FAULTS="all")


def soak(log):
    # Not through ctest, whose limit on the test's time is that of the short one.
    seconds = os.environ.get("SPECDEC_SOAK_SECONDS", "3600")
    return run(log, [sys.executable, "tests/e2e/soak_test.py", os.path.join(ROOT, "build")], SPECDEC_SOAK_SECONDS=seconds)


def sanitizer(name):
    return lambda log: run(log, ["make", "--no-print-directory", name])


def fuzz(log):
    inputs = os.environ.get("FUZZ_INPUTS", "1e7")
    for command in (["cmake", "--preset", "fuzz", "-DSPECDEC_RUST_COVERAGE=ON"], ["cmake", "--build", "build-fuzz", "-j", JOBS]):
        if code := run(log, command):
            return code
    code = run(log, [sys.executable, "tests/fuzz/run.py", "build-fuzz"], FUZZ_INPUTS=inputs, JOBS=JOBS)
    run(log, ["cmake", "--preset", "fuzz", "-DSPECDEC_RUST_COVERAGE=OFF"])
    return code


PARTS = {"tools": tools, "checks": checks, "faults": faults, "soak": soak, "asan": sanitizer("asan"), "tsan": sanitizer("tsan"), "fuzz": fuzz}


def counts(text):
    """What the log of a part says of itself."""
    found = {}
    if tests := re.findall(r"(\d+)% tests passed(?:, (\d+) tests failed)? out of (\d+)", text):
        found["tests"] = sum(int(t[2]) for t in tests)
        found["failed"] = re.findall(r"^\s*\d+ - (\S+) \((?:Failed|Timeout|SEGFAULT|Subprocess aborted|Not Run)", text, re.M)
    if skipped := re.findall(r"^\s*\d+ - (\S+) \(Skipped\)", text, re.M):
        found["skipped"] = skipped
    if fuzzed := re.search(r"^fuzz: ([\d,]+) inputs, (.*)$", text, re.M):
        found["inputs"] = int(fuzzed[1].replace(",", ""))
        found["targets"] = fuzzed[2]
    return found


def main():
    names = sys.argv[1:] or list(PARTS)
    for name in names:
        if name not in PARTS:
            sys.exit(f"nightly: {name}: no such part, expected some of: {' '.join(PARTS)}")
    os.makedirs(LOGS, exist_ok=True)
    results = []
    for number, name in enumerate(names, 1):
        print(f"nightly: {number}/{len(names)} {name} … (build/nightly/{name}.log)", flush=True)
        begun = time.monotonic()
        path = os.path.join(LOGS, name + ".log")
        with open(path, "w") as log:
            code = PARTS[name](log)
        with open(path, errors="replace") as log:
            found = counts(log.read())
        results.append({"part": name, "outcome": "ok" if code == 0 else "failed", "seconds": round(time.monotonic() - begun, 1), **found})
        print(f"nightly: {line_of(results[-1])}", flush=True)
    failed = [r["part"] for r in results if r["outcome"] != "ok"]
    summary = {"outcome": "failed" if failed else "ok", "failed": failed, "parts": results}
    fuzzed = os.path.join(ROOT, "build-fuzz", "fuzz", "summary.json")
    if "fuzz" in names and os.path.exists(fuzzed):
        with open(fuzzed) as f:
            summary["fuzz"] = json.load(f)
    with open(os.path.join(ROOT, "build", "nightly.json"), "w") as f:
        json.dump(summary, f, indent=1)
    print("\nnightly: summary (build/nightly.json)")
    for result in results:
        print("  " + line_of(result))
    print(f"nightly: {summary['outcome']}" + (f", failed: {' '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


def line_of(result):
    more = [f"{result['tests']} tests" if "tests" in result else "", f"{result['inputs']:,} inputs, {result['targets']}" if "inputs" in result else "",
            "failed: " + " ".join(result["failed"]) if result.get("failed") else "", "skipped: " + " ".join(result["skipped"]) if result.get("skipped") else ""]
    return f"{result['part']:7} {result['outcome']:6} {result['seconds']:9.1f} s  " + "; ".join(m for m in more if m)


main()
