"""Compares the EAGLE-3 heads of `specdec distill` with those of a PyTorch loop (the twin) over the speculators
package's class. Both loops run the same number of steps in fp32 with the same target, shards, tokens of a batch,
drafted positions, loss, optimizer, schedule, draft vocabulary and threads. Each seed is run once with each loop.
`specdec validate` judges both heads on the held-out rows. Prints one JSON object with acceptance by seed, means,
spreads and tokens a second. Run this script by hand; `make test` does not run it.

  python3 tests/bench/eagle_twin.py BUILD --target T --data D --python PYTHON [--steps 400] [--tokens 1024] [--lr 0.012]
      [--loss kl] [--draft-vocab 256] [--seeds 0,1,2] [--threads 1] [--folder DIR] [--out FILE]

PYTHON has torch 2.11, transformers 5.23.0 and speculators 0.7.0.2 (`pip install --no-deps`, beside loguru and
pydantic-settings). D is written by `specdec data ingest`. A run whose head is in --folder is not run again.

The twin draws its weights as the package does and starts lm_head as the target's rows. Two things differ from the
package's own loop, as in tests/parity/make_eagle_goldens.py: lm_head is trained, and a position counts by the mask of
the token that is predicted there. Rows are entries of a batch instead of parts of one packed sequence; this costs less,
and the loss is the same if all rows are equally long. The shuffle of the rows is Python's, so the two loops see the
rows in different orders. The twin keeps its last step. specdec is told to measure only after the last step, so it keeps
that step, too, unless it is worse than the start."""

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOSSES = {"kl": "kl_div", "rkl": "rkl", "jsd": "jsd", "tv": "tv", "nla": "nla", "lk_hybrid": "lk_hybrid"}
TTT_STEPS, TTT_DECAY, WARMUP, MIN_RATIO, CLIP = 5, 0.8, 0.03, 0.05, 1.0
STRETCH = 32  # rows are sorted by length within this many batches, as in distill/rows/batcher.cpp


# --- the PyTorch loop, in a process of its own ---


def read_rows(data):
    """Returns the training rows as pairs (tokens, mask of the tokens that are learnt)."""
    from safetensors.torch import load_file

    rows = []
    for shard in json.loads((data / "index.json").read_text())["shards"]:
        if shard["split"] == "train":
            t = load_file(data / shard["tokens"])
            starts = t["row_start"].tolist()
            rows += [(t["tokens"][a:b].long(), t["loss_mask"][a:b].bool()) for a, b in zip(starts, starts[1:])]
    return rows


def batches(rows, tokens, seed):
    """Yields batches of rows endlessly. Each epoch is shuffled; then the rows of every STRETCH batches are sorted by
    length."""
    draw = random.Random(seed)
    while True:
        order = list(range(len(rows)))
        draw.shuffle(order)
        longest = max(len(r[0]) for r in rows)
        size = STRETCH * max(1, tokens // longest)
        groups = []
        for begin in range(0, len(order), size):
            stretch = sorted(order[begin : begin + size], key=lambda i: -len(rows[i][0]))
            while stretch:
                take = max(1, tokens // len(rows[stretch[0]][0]))
                groups.append(stretch[:take])
                stretch = stretch[take:]
        draw.shuffle(groups)
        for group in groups:
            yield [rows[i] for i in group]


def new_head(target, config, kept, seed):
    """Returns the package's draft model of the same shape as our head, with weights drawn as the package draws them."""
    import torch
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    shape = "vocab_size hidden_size intermediate_size num_attention_heads num_key_value_heads head_dim rms_norm_eps"
    layer = {k: config[k] for k in shape.split()} | {"max_position_embeddings": config["max_position_embeddings"]}
    speculators = SpeculatorsConfig(
        algorithm="eagle3",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=TTT_STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
    )
    torch.manual_seed(seed)
    head = Eagle3DraftModel(
        Eagle3SpeculatorConfig(
            transformer_layer_config=LlamaConfig(
                **layer,
                num_hidden_layers=1,
                rope_parameters=config["rope_parameters"],
                attn_implementation="sdpa",
            ),
            draft_vocab_size=len(kept),
            norm_before_residual=config["norm_before_residual"],
            norm_before_fc=config["norm_before_fc"],
            fc_norm=config["fc_norm"],
            norm_output=config["norm_output"],
            speculators_config=speculators,
        )
    )
    with torch.no_grad():
        head.embed_tokens.weight.copy_(target.model.embed_tokens.weight)
        head.verifier_norm.weight.copy_(target.model.norm.weight)
        head.verifier_lm_head.weight.copy_(target.lm_head.weight[kept])
        head.lm_head.weight.copy_(target.lm_head.weight[kept])
    head.lm_head.weight.requires_grad_(True)
    if len(kept) < config["vocab_size"]:
        t2d = torch.zeros(config["vocab_size"], dtype=torch.bool)
        t2d[kept] = True
        head.load_vocab_mappings(t2d, kept - torch.arange(len(kept)))
    return head.train()


def several(tokens):
    """Returns tokens [B, S] as a tensor that the package pads to B rows. The package would pad an ordinary tensor to
    one row."""
    import torch

    class Rows(torch.Tensor):
        __torch_function__ = torch._C._disabled_torch_function_impl  # results computed from Rows are plain tensors
        detach = clone = lambda self: self
        new_zeros = lambda self, _, width: torch.zeros(len(self), width, dtype=torch.long)

    return tokens.as_subclass(Rows)


class Target:
    """Runs the frozen target and makes the inputs of a training step."""

    def __init__(self, directory, taps):
        from transformers import AutoModelForCausalLM

        self.taps = taps
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32", attn_implementation="sdpa").eval()
        self.last = []
        self.model.model.norm.register_forward_pre_hook(lambda _, inputs: self.last.append(inputs[0]))

    def inputs(self, batch):
        import torch

        width = max(len(tokens) for tokens, _ in batch)
        pad = lambda row: torch.nn.functional.pad(row, (0, width - len(row)))
        tokens = torch.stack([pad(t) for t, _ in batch])
        learnt = torch.stack([pad(m) for _, m in batch])
        self.last.clear()
        with torch.no_grad():
            out = self.model.model(tokens, output_hidden_states=True, use_cache=False)
        mask = torch.zeros(len(batch), width - 1, dtype=torch.bool)
        mask[:, :-1] = learnt[:, 2:]
        return dict(
            hidden_states=torch.cat([out.hidden_states[k] for k in self.taps], -1)[:, :-1],
            input_ids=several(tokens[:, 1:]),
            document_ids=torch.zeros(1, width - 1, dtype=torch.long),
            loss_mask=mask,
            position_ids=torch.arange(1, width).unsqueeze(0),
            verifier_last_hidden_states=self.last[0][:, 1:],
        ), sum(len(t) for t, _ in batch)


def rate(o, step):
    """Returns the learning rate of a step by the formula of distill/settings/schedule.cpp."""
    warmup = max(1.0, math.ceil(WARMUP * o.steps))
    progress = min(1.0, max(0.0, (step - warmup) / (o.steps - warmup)))
    cosine = MIN_RATIO + (1 - MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * progress))
    return o.lr * min(1.0, (step + 1) / warmup) * cosine


def twin(o):
    """Trains one head, writes it to --out in the plain layout with the config.json of the head --like, and prints its
    figures."""
    import types

    import torch
    from safetensors.torch import load_file, save_file

    sys.modules["datasets"] = types.ModuleType("datasets")  # an empty stand-in for a package that is not needed
    sys.modules["datasets"].load_from_disk = None
    from speculators.models.metrics import resolve_loss_config

    torch.set_num_threads(o.threads)
    config = json.loads((o.like / "config.json").read_text())
    ours = load_file(o.like / "model.safetensors")
    kept = torch.arange(config["draft_vocab_size"]) + ours.get("d2t", 0)
    layers = json.loads((o.target / "config.json").read_text())["num_hidden_layers"]
    taps = config.get("eagle_aux_hidden_state_layer_ids") or [2, layers // 2, layers - 3]
    target = Target(o.target, taps)
    head = new_head(target.model, config, kept, o.seed)
    parameters = {n.replace("layers.0.", "midlayer."): p for n, p in head.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p for p in parameters.values() if p.dim() >= 2]},
        {"params": [p for p in parameters.values() if p.dim() < 2]},
    ]
    optimizer = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0, fused=True)
    loss_config, source = resolve_loss_config(LOSSES[o.loss]), batches(read_rows(o.data), o.tokens, o.seed)
    tokens, losses, times = 0, [], []
    for step in range(o.steps):
        begin = time.perf_counter()
        inputs, count = target.inputs(next(source))
        _, loss, _ = head(**inputs, ttt_steps=TTT_STEPS, ttt_step_loss_decay=TTT_DECAY, loss_config=loss_config)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(parameters.values()), CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(o, step)
        optimizer.step()
        times.append(count / (time.perf_counter() - begin))
        losses.append(loss.item())
        tokens += count
        if step % 20 == 0:
            print(f"step {step}: loss {losses[-1]:.4f}, {times[-1]:.0f} tokens/s", file=sys.stderr, flush=True)
    written = {n: p.detach().contiguous() for n, p in parameters.items()}
    written |= {n: ours[n] for n in ("d2t", "t2d") if n in ours}
    if {n: t.shape for n, t in written.items()} != {n: t.shape for n, t in ours.items()}:
        raise SystemExit("the twin's tensors are not ours")
    partial = o.out.with_name(o.out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for file in o.like.iterdir():
        if file.name not in ("model.safetensors", "specdec.json"):
            shutil.copy(file, partial / file.name)
    save_file(written, partial / "model.safetensors", metadata={"format": "pt"})
    figures = {"tokens": tokens, "loss": sum(losses[-20:]) / len(losses[-20:]), **speed_of(times)}
    (partial / "figures.json").write_text(json.dumps(figures))
    partial.rename(o.out)


def speed_of(speeds):
    return {"tokens_per_second": round(statistics.median(speeds), 1), "best_tokens_per_second": round(max(speeds), 1)}


# --- runs both loops and judges their heads ---


def run(o, command, name, codes=(0,)):
    log = o.folder / (name + ".log")
    environment = dict(os.environ, OMP_NUM_THREADS=str(o.threads), HF_HUB_OFFLINE="1")
    with open(log, "w") as errors:
        done = subprocess.run(
            [str(c) for c in command], stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        )
    if done.returncode not in codes:
        raise SystemExit(f"{name} ended with {done.returncode}: {log.read_text()[-2000:]}")
    return done.stdout


def train_ours(o, seed):
    out = o.folder / f"ours-{seed}"
    if not (out / "result.json").exists():
        command = [o.build / "bin/specdec", "--json", "distill", "--target", o.target, "--data", o.data]
        command += ["--draft", "eagle3", "--draft-vocab", o.draft_vocab, "--loss", o.loss, "--lr", o.lr]
        command += ["--min-lr-ratio", MIN_RATIO, "--warmup-ratio", WARMUP, "--weight-decay", 0, "--clip", CLIP]
        command += ["--ttt-steps", TTT_STEPS, "--ttt-decay", TTT_DECAY, "--max-steps", o.steps, "--accumulate", 1]
        command += ["--batch-tokens", o.tokens, "--evaluate-every", o.steps, "--contexts", "data", "--dtype", "fp32"]
        command += ["--device", "cpu", "--threads", o.threads, "--seed", seed, "--resume", "--out", out]
        run(o, command, f"ours-{seed}", codes=(0, 3, 4))
    steps = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    steps = [s for s in steps if s["kind"] == "train"]
    training = json.loads((out / "result.json").read_text())["training"]
    if training["kept_step"] != o.steps:
        print(f"seed {seed}: ours kept step {training['kept_step']} of {o.steps}", file=sys.stderr)
    figures = {"tokens": training["tokens"], "loss": statistics.mean(s["loss"] for s in steps[-20:])}
    return out / "draft", figures | speed_of([s["tokens_per_second"] for s in steps])


def train_twin(o, seed, like):
    out = o.folder / f"twin-{seed}"
    if not out.exists():
        command = [o.python, __file__, o.build, "--target", o.target, "--data", o.data, "--seed", seed, "--out", out]
        command += ["--like", like, "--lr", o.lr, "--steps", o.steps, "--tokens", o.tokens]
        command += ["--loss", o.loss, "--threads", o.threads, "--child"]
        run(o, command, f"twin-{seed}")
    return out, json.loads((out / "figures.json").read_text())


def judge(o, draft, name):
    """Returns what `specdec validate` measures of a head on the held-out rows."""
    out = o.folder / f"gate-{name}"
    if not (out / "report.json").exists():
        command = [o.build / "bin/specdec", "--json", "validate", "--target", o.target, "--draft", draft]
        command += ["--data", o.data, "--contexts", "data", "--parts", o.parts, "--max-requests", 0, "--no-early-stop"]
        command += ["--k", TTT_STEPS, "--floor", 0.01, "--force", "--exit-zero", "--device", "cpu", "--dtype", "fp32"]
        command += ["--threads", o.threads, "--out", out]
        run(o, command, f"gate-{name}")
    report = json.loads((out / "report.json").read_text())
    figures = {"acceptance": report["acceptance"]["alpha"]}
    if "rollout" in o.parts:
        figures["rollout_length"] = report["acceptance"]["rollout"]["length"]
    return figures


def summary(values):
    return {"mean": statistics.mean(values), "spread": max(values) - min(values), "values": values}


def compare(o):
    found = {"ours": [], "twin": []}
    for seed in [int(s) for s in o.seeds.split(",")]:
        like, trained = train_ours(o, seed)
        found["ours"].append(trained | judge(o, like, f"ours-{seed}"))
        head, trained = train_twin(o, seed, like)
        found["twin"].append(trained | judge(o, head, f"twin-{seed}"))
    out = {"schema": "specdec.bench-eagle-twin/1"}
    out |= {k: getattr(o, k) for k in ("steps", "tokens", "lr", "loss", "draft_vocab", "seeds", "threads")}
    for name, heads in found.items():
        out[name] = {key: summary([h[key] for h in heads]) for key in heads[0]}
    ours, twin = out["ours"]["acceptance"], out["twin"]["acceptance"]
    out["difference"] = ours["mean"] - twin["mean"]
    out["not_below"] = out["difference"] >= -max(ours["spread"], twin["spread"])
    out["speed_ratio"] = out["ours"]["tokens_per_second"]["mean"] / out["twin"]["tokens_per_second"]["mean"]
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--target", type=Path, required=True)
    p.add_argument("--data", type=Path, required=True)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--tokens", type=int, default=1024, help="tokens of a step")
    p.add_argument("--lr", type=float, default=0.012, help="peak learning rate of both")
    p.add_argument("--loss", choices=sorted(LOSSES), default="kl")
    p.add_argument("--draft-vocab", type=int, default=256)
    p.add_argument("--seeds", default="0,1,2")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--parts", default="acceptance", help="of validate: acceptance, or acceptance,rollout")
    p.add_argument("--folder", type=Path, help="keeps the runs, so that a second start goes on")
    p.add_argument("--out", type=Path)
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    p.add_argument("--like", type=Path, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.child:
        return twin(o)
    with tempfile.TemporaryDirectory() as temporary:
        o.folder = o.folder or Path(temporary)
        o.folder.mkdir(parents=True, exist_ok=True)
        out = compare(o)
    print(json.dumps(out, indent=1))
    if o.out:
        o.out.write_text(json.dumps(out, indent=1) + "\n")
    return 0 if out["not_below"] else 1


if __name__ == "__main__":
    sys.exit(main())
