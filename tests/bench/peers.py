"""Compares tokens per second with llama.cpp and transformers' assisted generation. All engines get the same weights in
the same precision, the same prompts, lengths and threads, and take turns on every prompt. Each peer runs with the best
of its settings.

  python3 tests/bench/peers.py BUILD --target DIR --draft DIR --texts FILE --llama-source SRC --llama-build BUILD
      [--python PYTHON] [--out FILE]

SRC is llama.cpp's source (for example vendor/llama.cpp of the llama-cpp-python package), and its build holds
bin/llama-server. PYTHON has torch, transformers, tokenizers and what SRC/convert_hf_to_gguf.py needs. --twin DIR is
a model with the target's shapes and other weights, whose plain speed is compared with the target's. Prints one JSON
object. Every time covers the whole request, prompt included, and is the shortest of --rounds, because other processes
only ever add time. Without --llama-source, llama.cpp is left out; with --without-transformers, transformers is. The
figures of a peer that is left out are null."""

import argparse
import atexit
import itertools
import json
import math
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from served import Served

WORKER = r"""
import json, sys, torch, transformers
from transformers import AutoModelForCausalLM
target, draft, dtype, threads = sys.argv[1:5]
torch.set_num_threads(int(threads))
load = lambda d: AutoModelForCausalLM.from_pretrained(d, dtype=getattr(torch, dtype)).eval()
target, draft = load(target), load(draft)
print(json.dumps({"transformers": transformers.__version__}), flush=True)
for line in sys.stdin:
    r = json.loads(line)
    ids = torch.tensor([r["ids"]])
    options = {"do_sample": r["temperature"] > 0, "max_new_tokens": r["tokens"], "pad_token_id": 0}
    options["min_new_tokens"] = r["tokens"]
    if r["temperature"] > 0: options |= {"temperature": r["temperature"], "top_k": 0, "top_p": 1.0}
    if r["k"]:
        draft.generation_config.num_assistant_tokens = r["k"]
        draft.generation_config.num_assistant_tokens_schedule = "constant"
        draft.generation_config.assistant_confidence_threshold = r["p_min"]
        options["assistant_model"] = draft
    with torch.no_grad(): out = target.generate(ids, attention_mask=torch.ones_like(ids), **options)
    print(json.dumps({"tokens": out.shape[1] - ids.shape[1]}), flush=True)
"""


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=600))


def start(command, log):
    process = subprocess.Popen(
        [str(c) for c in command], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    atexit.register(process.kill)
    return process


def wait_for(url, process, log):
    for _ in range(600):
        try:
            return urllib.request.urlopen(url, timeout=5)
        except OSError:
            if process.poll() is not None:
                sys.exit(f"{process.args[0]} ended: {Path(log.name).read_text()[-2000:]}")
            time.sleep(0.1)
    sys.exit(f"{process.args[0]} does not answer")


class Specdec(Served):
    def __init__(self, o, target=None):
        super().__init__(
            o.build,
            "--target",
            target or o.target,
            "--draft",
            o.draft,
            "--dtype",
            o.dtype,
            "--threads",
            o.threads,
            *o.flags.split(),
        )

    def answer(self, prompt, tokens, temperature, speculative):
        reply = post(
            self.url + "/v1/completions",
            {
                "prompt": prompt["ids"],
                "max_tokens": tokens,
                "temperature": temperature,
                "ignore_eos": True,
                "speculative": speculative,
            },
        )
        return reply["usage"]["completion_tokens"]

    def acceptance(self):
        sums = {}
        for line in urllib.request.urlopen(self.url + "/metrics").read().decode().splitlines():
            for name in ("overlap_sum", "num_reached_tokens"):
                if line.startswith(f"specdec:spec_decode_{name}_per_pos_total{{"):
                    sums[name] = sums.get(name, 0) + float(line.split()[-1])
        return sums


class Llama:
    def __init__(self, o, work, k=0, p_min=0.0, ctx=512):
        log, self.setting = open(work / f"llama-{k}-{p_min}.log", "w"), {"k": k, "p_min": p_min}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        drafted = (
            [
                "--model-draft",
                work / "draft.gguf",
                "--spec-type",
                "draft-simple",
                "--spec-draft-n-max",
                k,
                "--spec-draft-p-min",
                p_min,
            ]
            if k
            else []
        )
        self.process = start(
            [
                o.llama_build / "bin/llama-server",
                "--model",
                work / "target.gguf",
                *drafted,
                "--threads",
                o.threads,
                "--threads-batch",
                o.threads,
                "--parallel",
                1,
                "--ctx-size",
                ctx,
                "--port",
                port,
                "--no-webui",
                "--cache-ram",
                0,
            ],
            log,
        )
        self.url = f"http://127.0.0.1:{port}"
        wait_for(self.url + "/health", self.process, log)

    def answer(self, prompt, tokens, temperature):
        reply = post(
            self.url + "/completion",
            {
                "prompt": prompt["ids"],
                "n_predict": tokens,
                "temperature": temperature,
                "ignore_eos": True,
                "cache_prompt": False,
                "top_k": 0,
                "top_p": 1.0,
                "min_p": 0.0,
                "samplers": ["temperature"],
                "repeat_penalty": 1.0,
            },
        )
        self.last = reply["timings"]
        return reply["tokens_predicted"]

    def stop(self):
        self.process.kill()
        self.process.wait()


class Transformers:
    def __init__(self, o, work):
        self.process = subprocess.Popen(
            [
                o.python,
                "-c",
                WORKER,
                str(o.target),
                str(o.draft),
                {"bf16": "bfloat16", "fp32": "float32"}[o.dtype],
                str(o.threads),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(work / "transformers.log", "w"),
            text=True,
        )
        atexit.register(self.process.kill)
        self.version = json.loads(self.process.stdout.readline())["transformers"]

    def answer(self, prompt, tokens, temperature, k, p_min):
        self.process.stdin.write(
            json.dumps({"ids": prompt["ids"], "tokens": tokens, "temperature": temperature, "k": k, "p_min": p_min})
            + "\n"
        )
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["tokens"]


def timed(answer, tokens):
    begin = time.perf_counter()
    made = answer()
    seconds = time.perf_counter() - begin
    if made != tokens:
        sys.exit(f"asked for {tokens} tokens, got {made}")
    return seconds


def seconds_of(engines, prompts, o, temperature):
    """Returns a map from engine to its seconds for each prompt, the shortest of all repetitions. The engines take
    turns, and each prompt begins with a different engine."""
    best = {name: [math.inf] * len(prompts) for name in engines}
    for round_ in range(o.rounds):
        for i, prompt in enumerate(prompts):
            names = list(engines)
            shift = (i + round_) % len(names)
            for name in names[shift:] + names[:shift]:
                best[name][i] = min(
                    best[name][i],
                    timed(lambda answer=engines[name], prompt=prompt: answer(prompt, o.tokens, temperature), o.tokens),
                )
        print(f"temperature {temperature}: round {round_ + 1} of {o.rounds}", file=sys.stderr)
    return best


def tune(candidates, prompts, o, temperature):
    """Returns the setting that is fastest for two prompts, and a map from each setting to its tokens per second.
    `candidates` maps a setting to the function that generates an answer with this setting."""
    some = argparse.Namespace(**{**vars(o), "rounds": 2})
    times = seconds_of(candidates, prompts[:2], some, temperature)
    return min(times, key=lambda name: sum(times[name])), {
        str(name): 2 * o.tokens / sum(t) for name, t in times.items()
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    for name in ("--target", "--draft", "--texts"):
        p.add_argument(name, type=Path, required=True)
    for name in ("--llama-source", "--llama-build", "--twin", "--out"):
        p.add_argument(name, type=Path)
    p.add_argument("--python", default=sys.executable, help="with torch, transformers and tokenizers")
    p.add_argument("--without-transformers", action="store_true")
    p.add_argument("--dtype", default="bf16", choices=["bf16", "fp32"])
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--prompts", type=int, default=8)
    p.add_argument("--prompt-tokens", type=int, default=24)
    p.add_argument("--tokens", type=int, default=192)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--temperatures", type=float, nargs="*", default=[0, 1])
    p.add_argument("--ks", type=int, nargs="*", default=[2, 3, 4, 6, 8], help="of the peers")
    p.add_argument("--p-mins", type=float, nargs="*", default=[0, 0.4, 0.75], help="of the peers")
    p.add_argument("--flags", default="", help="more flags of specdec serve")
    o = p.parse_args()
    work = Path(tempfile.mkdtemp())
    ours = Specdec(o)
    texts = [
        t.strip()
        for t in o.texts.read_text(errors="replace").replace("<|endoftext|>", "\n\n").split("\n\n")
        if len(t) > 200
    ][: o.prompts]
    encode = (
        "import json,sys; from tokenizers import Tokenizer; t = Tokenizer.from_file(sys.argv[1]); "
        "print(json.dumps([t.encode(x).ids for x in json.load(sys.stdin)]))"
    )
    ids = json.loads(
        subprocess.run(
            [o.python, "-c", encode, str(o.target / "tokenizer.json")],
            input=json.dumps(texts),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    )
    prompts = [{"ids": i[: o.prompt_tokens]} for i in ids]
    result = {
        "schema": "specdec.bench-peers/1",
        "prompts": len(prompts),
        "prompt_tokens": o.prompt_tokens,
        "tokens": o.tokens,
        "rounds": o.rounds,
        "threads": o.threads,
        "dtype": o.dtype,
        "target": o.target.name,
        "draft": o.draft.name,
        "temperatures": {},
    }
    engines_of = {"specdec plain": lambda *a: ours.answer(*a, False), "specdec": lambda *a: ours.answer(*a, True)}
    llama = bool(o.llama_source and o.llama_build)
    if llama:
        for name, directory in (("target", o.target), ("draft", o.draft)):
            subprocess.run(
                [
                    o.python,
                    str(o.llama_source / "convert_hf_to_gguf.py"),
                    str(directory),
                    "--outtype",
                    {"bf16": "bf16", "fp32": "f32"}[o.dtype],
                    "--outfile",
                    str(work / f"{name}.gguf"),
                ],
                check=True,
                stdout=subprocess.DEVNULL,
                stderr=open(work / "convert.log", "a"),
            )
        llama_plain = Llama(o, work)
        engines_of["llama.cpp plain"] = llama_plain.answer
    peer = None if o.without_transformers else Transformers(o, work)
    if peer:
        result["transformers"] = peer.version
        engines_of["transformers plain"] = lambda *a: peer.answer(*a, 0, 0)
    twin = Specdec(o, target=o.twin) if o.twin else None
    if twin:
        engines_of["twin plain"] = lambda *a: twin.answer(*a, False)
    for temperature in o.temperatures:
        engines, settings = dict(engines_of), {}
        if llama:
            running = {(k, p_min): Llama(o, work, k, p_min) for k, p_min in itertools.product(o.ks, o.p_mins)}
            best, settings["llama.cpp tried"] = tune(
                {setting: one.answer for setting, one in running.items()}, prompts, o, temperature
            )
            for setting, one in running.items():
                if setting != best:
                    one.stop()
            engines["llama.cpp speculative"], settings["llama.cpp"] = running[best].answer, best
        if peer:
            tried = {s: (lambda *a, s=s: peer.answer(*a, *s)) for s in itertools.product(o.ks, [0, 0.4])}
            best, settings["transformers tried"] = tune(tried, prompts, o, temperature)
            engines["transformers assisted"], settings["transformers"] = tried[best], best
        for answer in engines.values():
            answer(prompts[0], 32, temperature)
        before = ours.acceptance()
        seconds = seconds_of(engines, prompts, o, temperature)
        after = ours.acceptance()
        rate = {name: len(prompts) * o.tokens / sum(times) for name, times in seconds.items()}
        ratio = lambda a, *b, rate=rate: rate[a] / max(rate[x] for x in b) if all(x in rate for x in (a, *b)) else None
        reached = after.get("num_reached_tokens", 0) - before.get("num_reached_tokens", 0)
        result["temperatures"][str(temperature)] = {
            "tokens_per_second": rate,
            "settings": settings,
            "alpha": (after["overlap_sum"] - before["overlap_sum"]) / reached if reached else None,
            "plain to llama.cpp": ratio("specdec plain", "llama.cpp plain"),
            "speculative to llama.cpp's best": ratio("specdec", "llama.cpp plain", "llama.cpp speculative"),
            "speculative to transformers' best": ratio("specdec", "transformers plain", "transformers assisted"),
            "speculative to plain": ratio("specdec", "specdec plain"),
            "twin to plain": ratio("twin plain", "specdec plain"),
        }
        if llama:
            running[settings["llama.cpp"]].stop()
    text = json.dumps(result, indent=1)
    print(text)
    if o.out:
        o.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
