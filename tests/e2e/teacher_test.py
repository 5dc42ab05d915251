"""Tests teachers other than the target in the same process, on a real model. One teacher is files of hidden states in
the form that vLLM's connector saves; this test computes them with torch. Another is the top-20 log-probabilities of an
endpoint, our own server. A draft trained from the files must equal a draft trained in process. A draft trained from the
endpoint must gain nearly as much."""

import json
import math
import signal
import struct
import subprocess
import tempfile
from pathlib import Path

import torch
from specdec_run import SHARED, SPECDEC, expect, need_shared, run, run_json

need_shared("data/models/stories260K", "data/tinystories-text/tinystories_sample_2MB.txt")
TARGET = SHARED / "data/models/stories260K"
TEXTS = SHARED / "data/tinystories-text/tinystories_sample_2MB.txt"
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8}
torch.set_num_threads(1)


def read_tensors(path):
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, entry in json.loads(raw[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = (8 + length + offset for offset in entry["data_offsets"])
            values = torch.frombuffer(bytearray(raw[begin:end]), dtype=DTYPES[entry["dtype"]])
            out[name] = values.reshape(entry["shape"])
    return out


def save_file(tensors, path):
    """Writes a safetensors file with the same bytes as safetensors.torch.save_file."""
    names = {torch.float32: "F32", torch.bfloat16: "BF16", torch.int64: "I64"}
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, tensor in tensors.items():
        raw = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
        header[name] = {
            "dtype": names[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


class Llama:
    """A forward pass of a Llama checkpoint that collects what vLLM calls auxiliary hidden states: id k is the residual
    stream after k layers."""

    def __init__(self, folder):
        self.config = json.loads((folder / "config.json").read_text())
        self.w = {name: t.float() for name, t in read_tensors(folder / "model.safetensors").items()}

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * self.w[name]

    def states(self, tokens, aux):
        c, w = self.config, self.w
        heads, groups = c["num_attention_heads"], c["num_key_value_heads"]
        size = c["hidden_size"] // heads
        x = w["model.embed_tokens.weight"][tokens]
        angle = torch.arange(len(tokens)).unsqueeze(1) * c.get("rope_theta", 10000.0) ** (
            -torch.arange(0, size, 2) / size
        )
        cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)

        def turn(y, count):
            y = y.view(len(tokens), count, size).transpose(0, 1)
            half = torch.cat([-y[..., size // 2 :], y[..., : size // 2]], -1)
            return y * cos + half * sin

        collected = [x] if 0 in aux else []
        for layer in range(c["num_hidden_layers"]):
            name = f"model.layers.{layer}."
            h = self.norm(x, name + "input_layernorm.weight")
            q = turn(h @ w[name + "self_attn.q_proj.weight"].T, heads)
            k = turn(h @ w[name + "self_attn.k_proj.weight"].T, groups).repeat_interleave(heads // groups, 0)
            v = (h @ w[name + "self_attn.v_proj.weight"].T).view(len(tokens), groups, size).transpose(0, 1)
            v = v.repeat_interleave(heads // groups, 0)
            mask = torch.full((len(tokens), len(tokens)), -math.inf).triu(1)
            a = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(size) + mask, -1) @ v
            x = x + a.transpose(0, 1).flatten(1) @ w[name + "self_attn.o_proj.weight"].T
            h = self.norm(x, name + "post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(h @ w[name + "mlp.gate_proj.weight"].T)
            x = x + (gate * (h @ w[name + "mlp.up_proj.weight"].T)) @ w[name + "mlp.down_proj.weight"].T
            if layer + 1 in aux:
                collected.append(x)
        return torch.stack(collected, 1)


def save_requests(rows, folder):
    """Writes the files that vLLM's ExampleHiddenStatesConnector writes: one per request, with token ids and states."""
    folder.mkdir()
    llama = Llama(TARGET)
    layers = llama.config["num_hidden_layers"]
    aux = [2, layers // 2 + 1, layers]
    for number, tokens in enumerate(rows):
        ids = torch.tensor(tokens)
        save_file(
            {"hidden_states": llama.states(ids, aux), "token_ids": ids}, folder / f"cmpl-{number:04d}-0.safetensors"
        )


def rows_of(data):
    out = []
    for shard in json.loads((data / "index.json").read_text())["shards"]:
        tensors = read_tensors(data / shard["tokens"])
        start = tensors["row_start"].tolist()
        out += [tensors["tokens"][a:b].tolist() for a, b in zip(start, start[1:])]
    return out


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [str(SPECDEC), "serve", *map(str, arguments), "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        for line in self.process.stderr:
            if "listening on " in line:
                self.url = line.split("listening on ")[1].split()[0]
                return
        raise SystemExit("FAILED: the server did not start")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    data = work / "data"
    ingest = ["data", "ingest", TEXTS, "--target", TARGET, "--min-chars", 101, "--limit", 160, "--holdout-count", 40]
    run(*ingest, "--max-length", 128, "--no-redact", "--out", data)

    def distill(name, *arguments, seed=1, draft="prune:1", steps=120, lr=0.005):
        train = ["--max-steps", steps, "--batch-tokens", 1024, "--lr", lr, "--evaluate-every", steps, "--seed", seed]
        common = ["--dtype", "fp32", "--threads", 1, "--contexts", "data", "--out", work / name]
        code, result = run_json(
            "distill", "--target", TARGET, "--data", data, "--draft", draft, *train, *common, *arguments, code=(0, 3, 4)
        )
        return result

    def exact(draft):
        """Returns the acceptance of a draft, measured by `specdec validate` with the target itself on all held-out
        rows."""
        gate = [
            "validate",
            "--target",
            TARGET,
            "--draft",
            draft,
            "--data",
            data,
            "--contexts",
            "data",
            "--dtype",
            "fp32",
        ]
        out = work / f"gate-{draft.parent.name}"
        limits = ["--max-requests", 0, "--no-early-stop", "--temperature", 1, "--threads", 1]
        _, report = run_json(*gate, *limits, "--parts", "acceptance", "--out", out, code=(0, 3, 4))
        return report["acceptance"]["alpha"]

    # ---- hidden states ----
    save_requests(rows_of(data), work / "states")
    # Uses a low learning rate. The hidden states come from two programs that round differently, and the effect of the
    # difference grows with the learning rate.
    here = distill("here", "--teacher-cache", 0, lr=0.0005)
    files = distill("files", "--teacher", f"hidden:{work / 'states'}", lr=0.0005)
    a, b = (r["acceptance"]["after"]["value"] for r in (here, files))
    expect(abs(a - b) <= 1e-5, f"from vLLM's files as in process: acceptance {a:.6f} and {b:.6f}")
    expect(here["verdict"] == files["verdict"], f"the same verdict: {here['verdict']}")
    one, two = (read_tensors(work / name / "draft/model.safetensors") for name in ("here", "files"))
    worst = max((one[name] - two[name]).abs().max().item() for name in one)
    print(f"largest difference of a weight: {worst:.2g}")
    expect(files["data"]["unanswered_rows"] == {"train": 0, "holdout": 0}, "every row has a file")

    # ---- an endpoint ----
    server = Server("--target", TARGET, "--dtype", "fp32", "--threads", 1)
    distill("start", steps=1)
    start = exact(work / "start/draft")
    labels = work / "labels"
    label = ["data", "label", data, "--target", server.url, "--target-files", TARGET, "--out", labels]
    _, written = run_json(*label)
    expect(written["top_k"] == 20 and written["made"] == 160 and written["refused"] == 0, "20 tokens at every position")
    server.stop()
    _, local = run_json(
        "data", "label", data, "--target", TARGET, "--out", work / "local", "--top-k", 20, "--dtype", "fp32"
    )
    rest = [
        read_tensors(f / s["file"])["rest"].exp().mean().item()
        for f, index in ((labels, written), (work / "local", local))
        for s in index["shards"]
    ]
    expect(abs(rest[0] - rest[1]) < 1e-4, f"the endpoint's labels are the target's: rest {rest[0]:.4f}")
    gains, certain = [], []
    for seed in (1, 2, 3):
        distill(f"here-{seed}", seed=seed)
        bound = distill(f"there-{seed}", "--teacher", f"labels:{labels}", seed=seed)
        both = [exact(work / f"{name}-{seed}/draft") - start for name in ("here", "there")]
        rest = bound["acceptance"]["rest"]
        print(f"seed {seed}: gain {both[0]:.4f} in process, {both[1]:.4f} from the endpoint, rest {rest:.4f}")
        gains.append(both)
        certain.append(bound["verdict"])
    ratio = sum(g[1] for g in gains) / sum(g[0] for g in gains)
    expect(ratio >= 0.95, f"mean gain from the endpoint: {ratio:.3f} of the one in process")
    expect(set(certain) == {"improved"}, "the labels suffice for the verdict")
