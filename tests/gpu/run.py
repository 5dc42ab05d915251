#!/usr/bin/env python3
"""run.py [--first | --second] [--out FILE] [--tree DIR]: runs the tests and measurements that need a GPU, and writes
all results into one JSON file (gpu.json).

This script is in the archive of `make gpu-pack`, and in the tree of `make dist` as share/specdec/gpu/run.py, and runs
the programs of that archive or tree. --tree names another one, or a build folder. The machine needs a driver and a
Python environment with torch 2.11 (that of the running Python, or the one whose torch/lib SPECDEC_TORCH_LIB names).
Nothing is downloaded.

Each part runs in its own process under a time limit. The file is written while a part runs and after it, so a part that
fails, hangs or aborts loses only its own results. The parts, in their order:
  device      which GPU this is; without one, run.py ends here with 77
  doctor      specdec doctor: the bandwidth of copies, and the self-test of the kernels
  graphs      passes that run as CUDA graphs, compared with the same passes without graphs
  rounds      a target of 8B with a draft that agrees as often as a trained one, compared with plain decoding
  steps       the passes of which rounds consist: 8B at batch 1, 16 and 64, drafts of 1B in bf16 and int8
  apart       graphs and passes again, while no kernel starts before the previous one has ended
  kernels     products of matrices, and sampling of rows under top-k and top-p
  compiled    PyTorch: a compiled loop of the same 8B shape (peers.py)
  assisted    transformers: assisted generation of the same 8B shape (peers.py)
  head        greedy text with an EAGLE-3 head and without
  ncu         counters of the products, where they can be read
  memcheck, racecheck, synccheck      compute-sanitizer over a small self-test, where it is installed
  answers     greedy text and drawn tokens, with drafts and without, in rounds and step by step
  pair        specdec bench of the target and draft that the archive carries
  passes      passes of all families, compared with those of the CPU
  twins       the self-test of the kernels at many shapes
`--first` and `--second` each run some of the parts, for short use of a borrowed machine. They end within 400 and 420
seconds. Without these flags all parts run, with longer limits.
Exit code: 0 if every part passed or cannot run on this machine (for example ncu), 1 if one failed, 77 without a GPU."""

import argparse
import csv
import importlib.metadata
import importlib.util
import io
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

SKIPPED = 77
SANITIZER_ERROR = 99
GRACE = 5  # seconds from SIGTERM to SIGKILL when a part (one test program) is ended
FIRST_SECONDS, SECOND_SECONDS = 400, 420
LEAST_SECONDS = 2  # a part (one test program) is not started if less time is left
KEPT_LINES = 60  # number of last output lines of a part that the result file keeps


def torch_lib():
    """Returns the torch/lib folder that gpu_test must use, or None if gpu_test's own run path names it."""
    if given := os.environ.get("SPECDEC_TORCH_LIB"):
        return Path(given)
    found = importlib.util.find_spec("torch")
    return Path(found.submodule_search_locations[0]) / "lib" if found else None


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
    """Returns the driver's description of itself, which Linux has in a file, or None."""
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None


def write_json(path, value):
    """Replaces the file in one step, so that a reader never finds half a file."""
    next_file = path.with_name(path.name + ".next")
    next_file.write_text(json.dumps(value, indent=2) + "\n")
    next_file.replace(path)


def read_json(path):
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return {}


class Tree:
    """Finds the programs in a tree of `make dist`, an archive of `make gpu-pack` or a build folder."""

    def __init__(self, folder):
        self.folder = folder
        self.gpu_test = self.find("libexec/gpu_test", "tests/gpu_test")
        self.specdec = self.find("bin/specdec")
        self.pair = folder / "share/specdec/pair"

    def find(self, *places):
        for place in places:
            if (self.folder / place).exists():
                return self.folder / place
        sys.exit(
            f"run.py: {self.folder} has none of {', '.join(places)}: give --tree one of `make dist` or a build folder"
        )


class Part:
    """One process with a time limit. `command` gets a Tree and a work folder, and returns the command line, or a text
    that says why this machine cannot run the part. `read` gets the work folder and the output, and returns entries for
    the JSON; an entry "passed" replaces the verdict of the exit code."""

    def __init__(self, name, limit, command, read=None, **environment):
        self.name, self.limit, self.command, self.read = name, limit, command, read
        self.environment = environment


def tests(pattern):
    return lambda tree, _: [tree.gpu_test, f"--gtest_filter={pattern}"]


def doctor(tree, _):
    return [tree.specdec, "--json", "doctor"]


def read_doctor(_, printed):
    start = printed.find("{")
    try:
        found = json.loads(printed[start:])
    except ValueError:
        return {}
    gpus = found.get("gpus") or []
    return {"found": found, "passed": bool(gpus) and not any(gpu["faults"] for gpu in gpus)}


def sanitizer(tool):
    def command(tree, _):
        program = shutil.which("compute-sanitizer")
        if not program:
            return "compute-sanitizer is not installed"
        code = str(SANITIZER_ERROR)
        return [program, "--tool", tool, "--error-exitcode", code, tree.gpu_test, "--gtest_filter=Kernels.*"]

    return command


def read_sanitizer(_, printed):
    lines = [line for line in printed.splitlines() if line.startswith("=========")]
    found = {"summary": lines[-1] if lines else ""}
    if "Device not supported" in printed:
        found["unavailable"] = "compute-sanitizer does not support this device"
    return found


def ncu(tree, work):
    program = shutil.which("ncu")
    if not program:
        return "ncu is not installed"
    sections = ("SpeedOfLight", "MemoryWorkloadAnalysis", "Occupancy", "LaunchStats")
    words = [program, "--clock-control", "none", "--csv", "--page", "details", "--launch-count", "48"]
    words += ["--log-file", work / "ncu.csv"]
    for section in sections:
        words += ["--section", section]
    words += ["--kernel-name", "regex:rows_linear|sample"]
    return [*words, tree.gpu_test, "--gtest_filter=Speed.SamplingOfRows:Speed.Products*"]


def read_ncu(work, printed):
    """Returns the most important metrics of each kernel launch, under the names of ncu's own table."""
    log = work / "ncu.csv"
    printed += log.read_text(errors="replace") if log.exists() else ""
    if "ERR_NVGPUCTRPERM" in printed or "LibraryNotLoaded" in printed:
        return {"unavailable": "ncu cannot read this machine's counters"}
    lines = printed.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return {"launches": [], "passed": False}
    launches = {}
    for row in csv.DictReader(io.StringIO("\n".join(lines[start:]))):
        if not row["ID"].isdigit():
            continue
        launch = launches.setdefault(
            row["ID"], {"kernel": row.get("Kernel Name", "")[:120], "grid": row.get("Grid Size", ""), "metrics": {}}
        )
        if row.get("Metric Name"):
            launch["metrics"][row["Metric Name"]] = (
                f"{row.get('Metric Value', '')} {row.get('Metric Unit', '')}".strip()
            )
    return {"launches": list(launches.values()), "passed": bool(launches)}


def peer(name):
    def command(tree, work):
        script = Path(__file__).resolve().with_name("peers.py")
        missing = [package for package in ("torch", "transformers") if not importlib.util.find_spec(package)]
        if "torch" in missing or (name == "assisted" and missing):
            return f"the Python environment has no {' and no '.join(missing)}"
        return [sys.executable, script, name, "--out", work / "report.json"]

    return command


def pair(tree, work):
    if not tree.pair.exists():
        return "this tree carries no pair of models (make gpu-pack's does)"
    words = [tree.specdec, "--json", "bench", "--device", "cuda", "--batches", "1,16", "--prompts", "16", "--seed", "1"]
    for flag in ("target", "draft", "data"):
        words += [f"--{flag}", tree.pair / flag]
    return [*words, "--out", work / "bench"]


def read_pair(work, _):
    return {"found": read_json(work / "bench" / "bench.json")}


DEVICE = Part("device", 20, tests("-*"))
DOCTOR = Part("doctor", 60, doctor, read_doctor)
GRAPHS = Part("graphs", 40, tests("Graphs.*"))
ROUNDS = Part("rounds", 90, tests("Speed.Rounds"))
STEPS = Part("steps", 60, tests("Speed.Steps"))
APART = Part("apart", 40, tests("Graphs.*:Speed.Steps"), SPECDEC_CUDA_OVERLAP="0")
KERNELS = Part("kernels", 40, tests("Speed.Products*:Speed.WideProducts:Speed.SamplingOfRows"))
COMPILED = Part("compiled", 70, peer("compiled"))
ASSISTED = Part("assisted", 50, peer("assisted"))
HEAD = Part("head", 40, tests("Answers.GreedyTextIsTheSameWithAHead"))
NCU = Part("ncu", 60, ncu, read_ncu, SPECDEC_GPU_FEW="1")
# memcheck sees no errors inside the large blocks that LibTorch's allocator divides, so its caching is turned off.
MEMCHECK = Part(
    "memcheck", 45, sanitizer("memcheck"), read_sanitizer, SPECDEC_GPU_FEW="1", PYTORCH_NO_CUDA_MEMORY_CACHING="1"
)
RACECHECK = Part("racecheck", 45, sanitizer("racecheck"), read_sanitizer, SPECDEC_GPU_FEW="1")
SYNCCHECK = Part("synccheck", 45, sanitizer("synccheck"), read_sanitizer, SPECDEC_GPU_FEW="1")
ANSWERS = Part("answers", 100, tests("Answers.*"))
GREEDY = Part("answers", 100, tests("Answers.Greedy*"))
PAIR = Part("pair", 80, pair, read_pair)
PASSES = Part("passes", 40, tests("Passes.*"))
TWINS = Part("twins", 90, tests("Kernels.*"))

FIRST = [DEVICE, DOCTOR, GRAPHS, ROUNDS, STEPS, APART, KERNELS, COMPILED, ASSISTED, HEAD, NCU, MEMCHECK, RACECHECK]
SECOND = [DEVICE, ROUNDS, STEPS, KERNELS, GREEDY, PAIR, PASSES, TWINS]
ALL = [*FIRST, SYNCCHECK, ANSWERS, PAIR, PASSES, TWINS]
LONGER = 10  # factor on the time limits if neither --first nor --second is given


class Run:
    """The results of the parts (test programs) that have run so far, and the output file that contains them."""

    def __init__(self, tree, out, call, seconds):
        self.tree, self.out, self.started = tree, out, time.monotonic()
        self.deadline = self.started + seconds
        self.process = None
        self.result = {
            "schema": "specdec.gpu_run/2",
            "started": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "call": call,
            "verdict": "running",
            "machine": {
                "driver": driver(),
                "torch": torch_version(),
                "python": platform.python_version(),
                "system": platform.platform(),
            },
            "parts": {},
        }

    def write(self):
        self.result["seconds"] = round(time.monotonic() - self.started, 1)
        write_json(self.out, self.result)

    def environment(self, part, report):
        variables = {**os.environ, **part.environment, "SPECDEC_GPU_REPORT": str(report)}
        if lib := torch_lib():
            variables.setdefault("SPECDEC_TORCH_LIB", str(lib))
            old = variables.get("LD_LIBRARY_PATH")
            variables["LD_LIBRARY_PATH"] = f"{lib}:{old}" if old else str(lib)
        return variables

    def end(self):
        """Ends the process group of the running part (test program), first by SIGTERM and then by SIGKILL."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, sign)
                self.process.wait(GRACE)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                pass  # a process that hangs in the driver survives even SIGKILL

    def wait(self, limit, entry, report):
        """Waits up to `limit` seconds for the process. Meanwhile copies its newest report into the file."""
        end, seen = time.monotonic() + limit, None
        while True:
            try:
                return self.process.wait(min(1, max(0.01, end - time.monotonic())))
            except subprocess.TimeoutExpired:
                pass
            new = report.stat().st_mtime_ns if report.exists() else None
            if new != seen:
                seen = new
                entry.update(read_json(report))
                self.write()
            if time.monotonic() >= end:
                self.end()
                return None

    def run(self, part, limit):
        entry = self.result["parts"][part.name] = {"status": "running", "limit_seconds": round(limit, 1)}
        self.write()
        start = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            work = Path(folder)
            words = part.command(self.tree, work)
            if isinstance(words, str):
                entry.clear()
                entry.update(status="left out", why=words)
                return entry
            report, log = work / "report.json", work / "log.txt"
            with log.open("wb") as output:
                self.process = subprocess.Popen(
                    words,
                    env=self.environment(part, report),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                code = self.wait(limit, entry, report)
            self.process = None
            printed = log.read_text(errors="replace")
            entry.update(read_json(report))
            found = part.read(work, printed) if part.read and code is not None else {}
        passed = found.pop("passed", code == 0)
        entry |= found
        entry["exit_code"] = code
        entry["seconds"] = round(time.monotonic() - start, 1)
        if code is None:
            entry["status"] = "over its limit"
        elif code == SKIPPED and part is DEVICE:
            entry["status"] = "no GPU"
        elif "unavailable" in entry:
            entry["status"], entry["why"] = "left out", entry.pop("unavailable")
        else:
            entry["status"] = "passed" if passed else "failed"
        if entry["status"] != "passed":
            entry["printed"] = printed.splitlines()[-KEPT_LINES:]
        return entry

    def all(self, parts, limit_of):
        for part in parts:
            left = self.deadline - time.monotonic() - 2 * GRACE
            if left < LEAST_SECONDS:
                self.result["parts"][part.name] = {"status": "left out", "why": "no time was left for it"}
                self.write()
                continue
            entry = self.run(part, min(limit_of(part), left))
            if entry["status"] == "no GPU":
                print(entry["printed"][-1] if entry["printed"] else "SKIPPED: no GPU")
                self.out.unlink()
                sys.exit(SKIPPED)
            if device := entry.pop("device", None):
                self.result["machine"] |= device
            self.write()
            why = f": {entry['why']}" if "why" in entry else ""
            print(f"{part.name}: {entry['status']}{why} ({entry.get('seconds', 0)} s)", flush=True)
        good = {"passed", "left out"}
        passed = all(entry["status"] in good for entry in self.result["parts"].values())
        self.result["verdict"] = "pass" if passed else "fail"
        self.write()
        return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    calls = parser.add_mutually_exclusive_group()
    calls.add_argument(
        "--first", action="store_true", help=f"at most {FIRST_SECONDS} s: what decides, and what is fast"
    )
    calls.add_argument("--second", action="store_true", help=f"at most {SECOND_SECONDS} s: speed again, then the rest")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--tree", type=Path, default=Path(__file__).resolve().parents[3])
    parser.add_argument("--within", type=float, metavar="SECONDS", help="another limit of all parts together")
    parser.add_argument("--limit", action="append", default=[], metavar="PART=SECONDS", help="another limit of a part")
    options = parser.parse_args()

    call, parts, seconds, times = "all", ALL, 24 * 3600, LONGER
    if options.first:
        call, parts, seconds, times = "first", FIRST, FIRST_SECONDS, 1
    if options.second:
        call, parts, seconds, times = "second", SECOND, SECOND_SECONDS, 1
    limits = {part.name: part.limit * times for part in parts}
    for word in options.limit:
        name, _, limit = word.partition("=")
        if name not in limits or not limit.replace(".", "", 1).isdigit():
            parser.error(f"--limit: expected PART=SECONDS with one of {', '.join(limits)}, found '{word}'")
        limits[name] = float(limit)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    run = Run(Tree(options.tree), options.out, call, options.within or seconds)

    def stop(number, _):
        if run.process:
            run.end()
        for entry in run.result["parts"].values():
            entry["status"] = "stopped" if entry["status"] == "running" else entry["status"]
        run.result["verdict"] = "stopped"
        run.write()
        sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    passed = run.all(parts, lambda part: limits[part.name])
    print(f"{options.out}: {run.result['verdict']}, {run.result['seconds']} s")
    sys.exit(0 if passed else 1)


main()
