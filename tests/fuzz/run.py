#!/usr/bin/env python3
"""run.py BUILD [TARGET…]: runs the libFuzzer programs of a fuzz build, one for every target whose source is beside this
file.

Environment:
  FUZZ_INPUTS  inputs per target, 200000 if unset (divided by the target's COST, if CMakeLists.txt gives one)
  FUZZ_SEED    seed of the mutations; a fresh one is drawn and printed if unset
  FUZZ_CORPUS  folder that is kept between runs, ${SPECDEC_CACHE:-~/.cache/specdec}/fuzz if unset:
                 corpus/TARGET/  inputs that reached new code; the next run starts from them
                 finds/TARGET/   inputs that crashed a target. They come first in every later run until the target
                                 survives them
                 finds/TARGET.txt  seed and command of the run that found each of them
  JOBS         number of targets that run at the same time

Prints a line for each target when it ends and writes BUILD/fuzz/summary.json. The output of a target is in
BUILD/fuzz/TARGET.log. Exits with 1 if an input crashed a target."""

import concurrent.futures
import fcntl
import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
MOST_KEPT = 20000  # inputs; a larger corpus is first reduced to fewer inputs that reach the same code
SANITIZERS = {"ASAN_OPTIONS": "malloc_context_size=2:allow_addr2line=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


def cache_folder():
    return os.environ.get("SPECDEC_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "specdec"
    )


def number(name, fallback):
    text = os.environ.get(name) or str(fallback)
    value = int(float(text)) if re.fullmatch(r"\d+(e\d+)?", text) else 0
    if value < 1:
        sys.exit(f"{name}: expected a whole number above 0, such as 200000 or 1e7, found '{text}'")
    return value


def files_in(folder):
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder))]


class Target:
    def __init__(self, name, build, root, inputs, seed):
        with open(os.path.join(build, "fuzz", name + ".json")) as f:
            options = json.load(f)
        self.name, self.seed = name, seed
        self.inputs = max(1, inputs // options["cost"])
        self.program = os.path.join(build, "bin", name + "_fuzz")
        self.log = os.path.join(build, "fuzz", name + ".log")
        self.corpus, self.finds = (os.path.join(root, kind, name) for kind in ("corpus", "finds"))
        self.limits = [f"-max_len={options['max_len']}", "-timeout=10", "-rss_limit_mb=1024"]
        for folder in (self.corpus, self.finds):
            os.makedirs(folder, exist_ok=True)

    def reduce_corpus(self):
        # Reduces the corpus only while no other run fuzzes this target, because the new inputs of that run would be
        # lost.
        fcntl.flock(self.lock, fcntl.LOCK_SH)
        if len(os.listdir(self.corpus)) <= MOST_KEPT:
            return
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        smaller = self.corpus + ".smaller"
        shutil.rmtree(smaller, ignore_errors=True)
        os.makedirs(smaller)
        done = subprocess.run(
            [self.program, "-merge=1", *self.limits, smaller, self.corpus],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, **SANITIZERS),
        )
        if done.returncode == 0 and os.listdir(smaller):
            shutil.rmtree(self.corpus)
            os.rename(smaller, self.corpus)
        fcntl.flock(self.lock, fcntl.LOCK_SH)

    def run(self):
        with open(self.finds + ".lock", "w") as self.lock:
            self.reduce_corpus()
            return self.fuzz()

    def fuzz(self):
        before = set(os.listdir(self.finds))
        given = os.path.join(HERE, "seeds", self.name)
        command = [
            self.program,
            f"-runs={self.inputs}",
            f"-seed={self.seed}",
            *self.limits,
            "-print_funcs=0",
            "-print_final_stats=1",
            f"-artifact_prefix={self.finds}/",
            self.corpus,
            self.finds,
            *([given] if os.path.isdir(given) else []),
        ]
        begun = time.monotonic()
        with open(self.log, "w") as log:
            try:
                code = subprocess.run(
                    command,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=dict(os.environ, **SANITIZERS),
                    timeout=1800 * max(1.0, self.inputs / 200000),
                ).returncode
            except subprocess.TimeoutExpired:
                code = "no end"
        with open(self.log, errors="replace") as log:
            text = log.read()
        stat = dict(re.findall(r"^stat::(\w+):\s*(\d+)", text, re.M))
        reached = re.findall(r"cov: (\d+) ft: (\d+)", text) or [(0, 0)]
        result = {
            "target": self.name,
            "outcome": "ok" if code == 0 else "failed",
            "seed": self.seed,
            "inputs": int(stat.get("number_of_executed_units", 0)),
            "seconds": round(time.monotonic() - begun, 1),
            "new_inputs": int(stat.get("new_units_added", 0)),
            "corpus": len(os.listdir(self.corpus)),
            "edges": int(reached[-1][0]),
            "features": int(reached[-1][1]),
            "peak_rss_mb": int(stat.get("peak_rss_mb", 0)),
            "finds": [],
        }
        if code == 0:
            for path in files_in(self.finds):  # these inputs crashed the target before, but do not any more
                os.replace(path, os.path.join(self.corpus, os.path.basename(path)))
            return result
        result["log"] = self.log
        result["finds"] = [path for path in files_in(self.finds) if os.path.basename(path) not in before] or files_in(
            self.finds
        )
        with open(self.finds + ".txt", "a+") as notes:
            notes.seek(0)
            known = notes.read()
            for path in result["finds"]:
                if path not in known:
                    notes.write(
                        f"{path}\n  found by: {shlex.join(command)}\n  again:    {shlex.join([self.program, path])}\n"
                    )
        return result


def line_of(result):
    speed = result["inputs"] / max(result["seconds"], 0.1)
    text = (
        f"fuzz: {result['target']:20} {result['outcome']:6} {result['inputs']:>10,} inputs in "
        f"{result['seconds']:6.1f} s ({speed:>7,.0f}/s), "
        f"corpus {result['corpus']:,} (+{result['new_inputs']:,}), {result['edges']:,} edges, seed {result['seed']}"
    )
    for path in result["finds"]:
        text += f"\n  ended on {path}"
    return text + (f"\n  see {result['log']}" if result["outcome"] != "ok" else "")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build = os.path.abspath(sys.argv[1])
    known = sorted(name[: -len("_fuzz.cpp")] for name in os.listdir(HERE) if name.endswith("_fuzz.cpp"))
    names = sys.argv[2:] or known
    for name in names:
        if name not in known:
            sys.exit(f"{name}: no such target, expected one of: {' '.join(known)}")
        if not os.path.exists(os.path.join(build, "bin", name + "_fuzz")):
            sys.exit(
                f"{build}/bin/{name}_fuzz: not built, run make fuzz (expected the build folder of the preset fuzz)"
            )
    inputs, jobs = number("FUZZ_INPUTS", 200000), number("JOBS", os.cpu_count() or 1)
    seed = number("FUZZ_SEED", secrets.randbelow(2**31 - 1) + 1)
    root = os.environ.get("FUZZ_CORPUS") or os.path.join(cache_folder(), "fuzz")
    print(f"fuzz: {len(names)} targets, {inputs:,} inputs each, FUZZ_SEED={seed}, kept in {root}", flush=True)
    results = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in concurrent.futures.as_completed(
            [pool.submit(Target(name, build, root, inputs, seed).run) for name in names]
        ):
            results.append(done.result())
            print(line_of(results[-1]), flush=True)
    results.sort(key=lambda r: r["target"])
    with open(os.path.join(build, "fuzz", "summary.json"), "w") as f:
        json.dump({"seed": seed, "inputs_each": inputs, "targets": results}, f, indent=1)
    failed = [r["target"] for r in results if r["outcome"] != "ok"]
    print(
        f"fuzz: {sum(r['inputs'] for r in results):,} inputs, {len(results) - len(failed)} of {len(results)} targets ok"
        + (f", failed: {' '.join(failed)}" if failed else "")
    )
    sys.exit(1 if failed else 0)


main()
