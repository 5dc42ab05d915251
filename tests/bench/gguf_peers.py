"""Compares the speed of specdec and llama.cpp on GGUF files: both serve the same file with the same threads and take
turns on the same prompts, plain decoding and greedy.

  python3 tests/bench/gguf_peers.py BUILD --model FILE.gguf [--model …] --llama-build BUILD [--threads 2] [--rounds 8]

Each round asks each engine, in turns of order, for an answer to a short prompt (its seconds less those of an answer of
one token give decoded tokens per second) and for one token after a prompt of 512 tokens (prefill). Prints one JSON
object with the medians, and the ratio ours ÷ theirs of each pair as its geometric mean with an interval of 95 %
(Student's t of the logarithms)."""

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path

from peers import Llama, post
from served import Served

STUDENT = {4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26, 12: 2.20, 16: 2.13, 20: 2.09, 30: 2.05}


class Ours(Served):
    def ask(self, ids, tokens):
        post(
            self.url + "/v1/completions",
            {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "speculative": False},
        )


class Theirs(Llama):
    def ask(self, ids, tokens):
        self.answer({"ids": ids}, tokens, 0)


def seconds(engine, ids, tokens):
    begin = time.perf_counter()
    engine.ask(ids, tokens)
    return time.perf_counter() - begin


def measure(engine, number, tokens):
    """Returns decoded tokens and prefilled tokens per second. Each call has a prompt of its own, so that no cache of
    prefixes helps."""

    def ids(count, seed):
        return [300 + (seed * 977 + i * 131 + i * i * 7) % 20000 for i in range(count)]

    short = seconds(engine, ids(24, number), 1)
    long = seconds(engine, ids(24, number + 1000), tokens + 1)
    prefill = seconds(engine, ids(512, number + 2000), 1)
    return {"decode": tokens / (long - short), "prefill": 512 / prefill}


def ratio(pairs):
    logs = [math.log(a / b) for a, b in pairs]
    count = len(logs)
    mean = statistics.fmean(logs)
    t = STUDENT[min(STUDENT, key=lambda n: (n > count, abs(n - count)))]
    half = t * statistics.stdev(logs) / math.sqrt(count)
    return {"mean": math.exp(mean), "low": math.exp(mean - half), "high": math.exp(mean + half)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--model", type=Path, action="append", required=True)
    p.add_argument("--llama-build", type=Path, required=True)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=8)
    p.add_argument("--tokens", type=int, default=128)
    o = p.parse_args()
    if o.rounds < 4:
        p.error("--rounds: expected at least 4")
    out = []
    for model in o.model:
        work = Path(tempfile.mkdtemp())
        (work / "target.gguf").symlink_to(model.resolve())
        ours = Ours(o.build, "--target", model, "--threads", o.threads, "--max-batch", 1)
        theirs = Theirs(o, work, ctx=1024)
        engines = {"specdec": ours, "llama.cpp": theirs}
        for engine in engines.values():
            measure(engine, 100000, 16)
        found = {name: [] for name in engines}
        for number in range(o.rounds):
            for name in list(engines) if number % 2 else reversed(list(engines)):
                found[name].append(measure(engines[name], number, o.tokens))
        result = {"model": model.name, "bytes": model.stat().st_size, "threads": o.threads, "rounds": o.rounds}
        for what in ("decode", "prefill"):
            values = {name: [f[what] for f in all_] for name, all_ in found.items()}
            result[what] = {f"{name} tokens/s": statistics.median(v) for name, v in values.items()}
            result[what]["ratio"] = ratio(list(zip(values["specdec"], values["llama.cpp"], strict=True)))
        out.append(result)
        ours.process.terminate()
        ours.process.wait()
        theirs.stop()
    print(json.dumps(out, indent=1))


if __name__ == "__main__":
    main()
