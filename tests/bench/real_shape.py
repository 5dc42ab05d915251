"""Runs `specdec distill` on a model in the shape of Qwen2.5-0.5B (24 layers, width 896, vocabulary 151,936; bf16) with
random weights. Measures how long the command prints nothing, how long preparation and a step take, and how soon the
command ends after SIGTERM at random moments. The measurement needs 1 GB on disk and minutes of time, so `make test`
does not run it.

  python3 tests/bench/real_shape.py BUILD [--stops 6] [--seconds 150] [--seed 1] [--out FILE]

Prints one JSON object. Exits with 1 if the command was silent for more than 2.5 s (the limit of 2 s and the machine's
own jitter), or if a stop took longer than 10 s or gave another exit code than 75."""

import argparse
import json
import random
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
LAYERS, HIDDEN, MLP, HEADS, KV_HEADS, HEAD, VOCAB = 24, 896, 4864, 14, 2, 64, 151936


def write_model(folder, seed):
    """Writes values like those of trained weights: N(0, 0.02) in bf16, norms 1."""
    from tiny_model import byte_tokenizer

    folder.mkdir(parents=True)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "use_sliding_window": False,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        for name, rows in (("q", HEADS * HEAD), ("k", KV_HEADS * HEAD), ("v", KV_HEADS * HEAD)):
            shapes |= {
                at + f"self_attn.{name}_proj.weight": (rows, HIDDEN),
                at + f"self_attn.{name}_proj.bias": (rows,),
            }
        shapes |= {
            at + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            at + "mlp.gate_proj.weight": (MLP, HIDDEN),
            at + "mlp.up_proj.weight": (MLP, HIDDEN),
            at + "mlp.down_proj.weight": (HIDDEN, MLP),
            at + "input_layernorm.weight": (HIDDEN,),
            at + "post_attention_layernorm.weight": (HIDDEN,),
        }
    header, offset = {}, 0
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + 2 * count]}
        offset += 2 * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = random.Random(seed)
    # A pool of a million normal values, read from a different offset for each tensor: drawing 494 million would take
    # longer than the test.
    pool = b"".join(struct.pack("<f", rng.gauss(0, 0.02))[2:] for _ in range(1 << 20))
    one = struct.pack("<f", 1.0)[2:]
    with open(folder / "model.safetensors", "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name in shapes:
            size = header[name]["data_offsets"][1] - header[name]["data_offsets"][0]
            if name.endswith("norm.weight"):
                out.write(one * (size // 2))
                continue
            start = 2 * rng.randrange(1 << 20)
            turned = pool[start:] + pool[:start]
            while size > 0:
                out.write(turned[:size])
                size -= len(turned)


def write_text(file, rows, seed):
    rng = random.Random(seed)
    words = ["red", "green", "blue", "one", "two", "three", "up", "down", "light", "water", "stone", "river"]
    file.write_text(
        "".join(
            json.dumps({"text": " ".join(rng.choice(words) for _ in range(rng.randrange(30, 60)))}) + "\n"
            for _ in range(rows)
        )
    )


class Run:
    """Runs a command and reads its stderr line by line, with the time of each line."""

    def __init__(self, command):
        self.begin = time.monotonic()
        self.process = subprocess.Popen(
            [str(c) for c in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.lines = []
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def read(self):
        for line in self.process.stderr:
            self.lines.append((time.monotonic() - self.begin, line.rstrip()))

    def wait(self, timeout):
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.end = time.monotonic() - self.begin
        self.reader.join()
        return self.process.returncode

    def longest_silence(self):
        times = [0, *(t for t, _ in self.lines), self.end]
        return max(b - a for a, b in zip(times, times[1:]))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--stops", type=int, default=6)
    p.add_argument("--seconds", type=int, default=150, help="time limit of the run that is not stopped")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--folder", type=Path, help="keeps the model there for another run")
    p.add_argument("--out", type=Path)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        kept = o.folder or work
        specdec = o.build / "bin/specdec"
        if not (kept / "target").exists():
            write_model(kept / "target", o.seed)
            write_text(kept / "text.jsonl", 400, o.seed)
            subprocess.run(
                [
                    str(specdec),
                    "data",
                    "ingest",
                    str(kept / "text.jsonl"),
                    "--target",
                    str(kept / "target"),
                    "--out",
                    str(kept / "data"),
                    "--holdout",
                    "0.2",
                ],
                check=True,
            )
        command = [specdec, "distill", "--target", kept / "target", "--data", kept / "data", "--draft", "prune:2"]
        whole = Run([*command, "--time-limit", f"{o.seconds}s", "--out", work / "run"])
        code = whole.wait(20 * o.seconds)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        stage = [(t, line) for t, line in whole.lines]
        first_step = next((t for t, line in stage if line.startswith("distill")), whole.end)
        result = json.loads((work / "run/result.json").read_text()) if code in (0, 3, 4) else {}
        out = {
            "schema": "specdec.bench-real-shape/1",
            "exit": code,
            "seconds": round(whole.end, 1),
            "longest_silence": round(whole.longest_silence(), 2),
            "until_first_step": round(first_step, 1),
            "user_seconds": round(used.ru_utime),
            "system_seconds": round(used.ru_stime),
            "peak_gib": round(used.ru_maxrss / 2**20, 2),
            "training": result.get("training", {}),
            "stops": [],
        }
        out["training"].pop("selection", None), out["training"].pop("layers", None)
        rng = random.Random(o.seed)
        for i in range(o.stops):
            at = rng.uniform(0, 0.9 * whole.end)
            run = Run([*command, "--time-limit", f"{o.seconds}s", "--out", work / f"stop-{i}"])
            time.sleep(at)
            asked = time.monotonic()
            run.process.send_signal(signal.SIGTERM)
            code = run.wait(60)
            last = run.lines[-1][1] if run.lines else ""
            out["stops"].append(
                {
                    "at": round(at, 1),
                    "seconds": round(time.monotonic() - asked, 2),
                    "exit": code,
                    "silence": round(run.longest_silence(), 2),
                    "said": last,
                }
            )
            subprocess.run(["rm", "-rf", str(work / f"stop-{i}")])
        print(json.dumps(out, indent=1))
        if o.out:
            o.out.write_text(json.dumps(out, indent=1) + "\n")
        late = [s for s in out["stops"] if s["seconds"] > 10 or s["exit"] != 75]
        sys.exit(1 if late or max([out["longest_silence"], *(s["silence"] for s in out["stops"])]) > 2.5 else 0)


if __name__ == "__main__":
    main()
