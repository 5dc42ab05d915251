"""Compares the training steps of `specdec distill` with PyTorch loops over transformers models: the same target, draft
shape, rows, batch, dtype and threads, one after the other in one run. Prints one JSON object with tokens a second, peak
memory and their ratios. Run this script by hand; `make test` does not run it.

  python3 tests/bench/distill_peer.py BUILD --python PYTHON [--shape small|qwen05] [--tokens 1024] [--steps 6]
      [--threads 2] [--loops naive,fused,chunked,compiled] [--folder DIR] [--out FILE]

PYTHON has torch 2.11 and transformers. `small` has 10 M weights and a vocabulary of 4,096, `qwen05` is Qwen2.5-0.5B's
shape; the weights are random, the draft is two layers, all tokens are learnt, and the loss is the KL divergence.

  naive     draft in fp32 under bf16 autocast, AdamW, log-softmax of all logits [T, V]
  fused     the same with the fused AdamW
  chunked   fused, and head and loss under torch.utils.checkpoint, 512 rows at a time
  compiled  chunked, with the draft's layers and the loss under torch.compile"""

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LENGTH = 256


def read_rows(data, count):
    """Returns the first `count` training rows of LENGTH tokens from the shards in `data`."""
    index = json.loads((data / "index.json").read_text())
    rows = []
    for shard in index["shards"]:
        if shard["split"] != "train":
            continue
        raw = (data / shard["tokens"]).read_bytes()
        (size,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + size])

        def values(name, form, width, raw=raw, header=header, size=size):
            begin, end = header[name]["data_offsets"]
            return struct.unpack(f"<{(end - begin) // width}{form}", raw[8 + size + begin : 8 + size + end])

        tokens, start = values("tokens", "i", 4), values("row_start", "q", 8)
        rows += [tokens[a:b] for a, b in zip(start, start[1:]) if b - a == LENGTH]
    return rows[:count]


def loop(o):
    """Runs one PyTorch loop in this process and prints its figures."""
    import torch
    from torch.utils.checkpoint import checkpoint
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(o.threads)
    torch.manual_seed(0)
    load = lambda dtype: AutoModelForCausalLM.from_pretrained(
        o.folder / "target", dtype=dtype, attn_implementation="sdpa"
    )
    target, draft = load(torch.bfloat16).eval(), load(torch.float32)
    draft.model.layers = torch.nn.ModuleList([draft.model.layers[0], draft.model.layers[-1]])
    for i, layer in enumerate(draft.model.layers):
        layer.self_attn.layer_idx = i
    draft.config.num_hidden_layers = 2
    if getattr(draft.config, "layer_types", None):
        draft.config.layer_types = draft.config.layer_types[:2]
    rows = torch.tensor(read_rows(o.folder / "data", o.tokens // LENGTH))
    chunked = o.loop in ("chunked", "compiled")
    optimizer = torch.optim.AdamW(draft.parameters(), lr=1e-5, betas=(0.9, 0.95), fused=o.loop != "naive" or None)

    def loss_of(hidden, wanted):
        log_q = draft.lm_head(hidden).float().log_softmax(-1)
        log_p = target.lm_head(wanted).float().log_softmax(-1)
        return (log_p.exp() * (log_p - log_q)).sum()

    if o.loop == "compiled":
        loss_of = torch.compile(loss_of)
        draft.model = torch.compile(draft.model)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                wanted = target.model(rows, use_cache=False).last_hidden_state.flatten(0, 1)
            hidden = draft.model(rows, use_cache=False).last_hidden_state.flatten(0, 1)
            size = 512 if chunked else len(hidden)
            loss = 0
            for a, b in zip(hidden.split(size), wanted.split(size)):
                part = checkpoint(loss_of, a, b, use_reentrant=False) if chunked else loss_of(a, b)
                loss = loss + part / len(hidden)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    times = []
    for _ in range(o.steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    used = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "tokens_per_second": round(rows.numel() / min(times), 1),
                "mean_tokens_per_second": round(rows.numel() * len(times) / sum(times), 1),
                "peak_gib": round(used.ru_maxrss / 2**20, 2),
                "cores": round((used.ru_utime + used.ru_stime) / max(1e-9, time.perf_counter() - o.began), 2),
            }
        )
    )


def make(o):
    """Writes the target, a text and its shards to the folder, unless they are there already."""
    sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "e2e")]
    import real_shape

    if o.shape == "small":
        real_shape.LAYERS, real_shape.HIDDEN, real_shape.MLP = 8, 320, 864
        real_shape.HEADS, real_shape.KV_HEADS, real_shape.HEAD, real_shape.VOCAB = 5, 5, 64, 4096
    if not (o.folder / "target").exists():
        real_shape.write_model(o.folder / "target", 1)
    if not (o.folder / "data").exists():
        text = " ".join(f"{i * 7919 % 1000003}" for i in range(200))
        lines = [json.dumps({"text": f"{i} {text}"}) for i in range(200)]
        (o.folder / "text.jsonl").write_text("\n".join(lines) + "\n")
        command = [o.build / "bin/specdec", "data", "ingest", o.folder / "text.jsonl", "--target", o.folder / "target"]
        command += ["--out", o.folder / "data", "--holdout", "0.2", "--max-length", str(LENGTH), "--no-dedup"]
        subprocess.run([str(c) for c in command], check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)


def ours(o, run):
    command = [
        o.build / "bin/specdec",
        "--json",
        "distill",
        "--target",
        o.folder / "target",
        "--data",
        o.folder / "data",
    ]
    command += ["--draft", "prune:2", "--loss", "kl", "--lr", "1e-5", "--batch-tokens", o.tokens, "--accumulate", 1]
    command += ["--max-steps", o.steps + 2, "--evaluate-rows", 1, "--device", "cpu", "--out", run]
    command += ["--teacher-cache", 0]  # no cache, because the PyTorch loops run the target in every step, too
    environment = dict(os.environ, OMP_NUM_THREADS=str(o.threads))
    with open(run.parent / "stderr", "w") as log:
        process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, stderr=log, env=environment)
        process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
    if os.waitstatus_to_exitcode(status) not in (0, 3, 4):
        raise SystemExit((run.parent / "stderr").read_text()[-2000:])
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    speeds = [s["tokens_per_second"] for s in steps if s["kind"] == "train"][2:]
    return {
        "tokens_per_second": round(max(speeds), 1),
        "mean_tokens_per_second": round(len(speeds) / sum(1 / s for s in speeds), 1),
        "peak_gib": round(used.ru_maxrss / 2**20, 2),
    }


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--shape", choices=["small", "qwen05"], default="small")
    p.add_argument("--tokens", type=int, default=1024, help="tokens of a step")
    p.add_argument("--steps", type=int, default=6, help="timed steps, after two that warm up")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--loops", default="naive,fused,chunked,compiled")
    p.add_argument("--folder", type=Path, help="keeps the model and the data there for another run")
    p.add_argument("--out", type=Path)
    p.add_argument("--loop", help=argparse.SUPPRESS)
    o = p.parse_args()
    o.began = time.perf_counter()
    if o.loop:
        return loop(o)
    with tempfile.TemporaryDirectory() as temporary:
        o.folder = o.folder or Path(temporary) / "made"
        o.folder.mkdir(parents=True, exist_ok=True)
        make(o)
        out = {"schema": "specdec.bench-distill-peer/1", "shape": o.shape, "tokens": o.tokens, "threads": o.threads}
        out["specdec"] = ours(o, Path(temporary) / "run")
        for name in [n for n in o.loops.split(",") if n]:
            command = [o.python, __file__, o.build, "--loop", name, "--folder", o.folder]
            command += ["--tokens", o.tokens, "--steps", o.steps, "--threads", o.threads]
            done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
            if done.returncode != 0:
                out[name] = {"failed": done.stderr.strip().splitlines()[-1:]}
                continue
            out[name] = json.loads(done.stdout)
            for figure, ratio in (("tokens_per_second", "speed_ratio"), ("peak_gib", "memory_ratio")):
                out[name][ratio] = round(out["specdec"][figure] / out[name][figure], 2)
        text = json.dumps(out, indent=1)
        print(text)
        if o.out:
            o.out.write_text(text + "\n")


main()
