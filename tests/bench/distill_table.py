"""Measures what distillation choices are worth, one factor at a time, on a target that is trained here: domain data
against mixed and foreign data, kinds of drafts, losses, learning on the draft's own tokens, and what to do after the
target was fine-tuned. Prints a table in Markdown.

  python3 tests/bench/distill_table.py BUILD --folder DIR [--python PYTHON] [--seconds 120] [--target-seconds 1200]
      [--cells base,mixed,...]

PYTHON has the package tokenizers. All files are in DIR, and files that exist are not made again, so an interrupted run
continues; delete DIR/cells/NAME to repeat a cell. Nothing else may run on the machine.

The texts are GPTeacher's code, role play and tool calls in ../shared (SPECDEC_SHARED). The target has 12 layers of
width 128 and 2,048 tokens, and learns all three domains. The gate judges every draft on the target's own answers to
held-out code prompts: acceptance (alpha) and speed-up with intervals, accepted length, and acceptance by position at K
= 4. A cell is one row of the table: a draft and the way in which it is trained. Cells with `update` first fine-tune the
target on code, so the draft that was trained before is stale. `cold` cells train from scratch; `warm` ones start from
the stale draft and train for a quarter of the time."""

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("SPECDEC_SHARED", SOURCE.parent / "shared"))
DOMAINS = {
    "code": "codegen-instruct.json",
    "roleplay": "roleplay-simple-deduped-roleplay-instruct.json",
    "tools": "toolformer-dedupe-only-dataset.json",
}
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIAL = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
TOKENIZER = """
import json, sys
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers
t = Tokenizer(models.BPE())
t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
t.decoder = decoders.ByteLevel()
t.train_from_iterator(json.load(sys.stdin), trainers.BpeTrainer(
    vocab_size=2048, special_tokens=sys.argv[2:], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
t.save(sys.argv[1])
"""
# Maps the name of a cell (a row of the table) to its differences from `base`. Cells with `update` are judged with the
# fine-tuned target.
CELLS = {
    "base": {},
    "mixed": {"data": "mixed"},
    "foreign": {"data": "foreign"},
    "untrained": {"flags": ["--max-steps", "1", "--lr", "1e-12"], "seconds": 0},
    "random-start": {"draft": "config:{folder}/one-layer.json"},
    "two-layers": {"draft": "prune:2"},
    "eagle3": {"draft": "eagle3"},
    "kl": {"flags": ["--loss", "kl"]},
    "on-policy": {"flags": ["--on-policy", "4"]},
    "stale": {"update": True, "draft": None},
    "cold": {"update": True},
    "cold-quarter": {"update": True, "share": 0.25},
    "warm-quarter": {"update": True, "share": 0.25, "draft": "model:{folder}/cells/base/run/draft"},
}


class Table:
    def __init__(self, o):
        self.o, self.folder, self.specdec = o, o.folder.resolve(), str(o.build / "bin/specdec")

    def run(self, *command, codes=(0,)):
        done = subprocess.run([self.specdec, *map(str, command)], stdout=subprocess.PIPE, text=True)
        if done.returncode not in codes:
            sys.exit(f"specdec {command[0]} ended with {done.returncode}; the same command line goes on from here")
        return done.stdout

    def make_texts(self):
        rng = random.Random(1)
        for name, file in DOMAINS.items():
            rows = json.loads((SHARED / "data/gpteacher" / file).read_text())
            rng.shuffle(rows)
            with open(self.folder / f"{name}.jsonl", "w") as out:
                for i, row in enumerate(rows):
                    asked = "\n".join(filter(None, [row["instruction"], row["input"]]))
                    turns = [("user", asked), ("assistant", row["response"])]
                    out.write(
                        json.dumps(
                            {
                                "id": f"{name}-{i}",
                                "domain": name,
                                "messages": [{"role": r, "content": c} for r, c in turns],
                            }
                        )
                        + "\n"
                    )

    def make_blank(self):
        """Writes the directory from which the target's training starts: a tokenizer and a configuration, without
        weights."""
        blank = self.folder / "blank"
        blank.mkdir(exist_ok=True)
        texts = []
        for name in DOMAINS:
            for line in open(self.folder / f"{name}.jsonl"):
                texts += [m["content"] for m in json.loads(line)["messages"]]
        subprocess.run(
            [self.o.python, "-c", TOKENIZER, blank / "tokenizer.json", *SPECIAL],
            input=json.dumps(texts),
            text=True,
            check=True,
        )
        (blank / "tokenizer_config.json").write_text(
            json.dumps({"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": TEMPLATE})
        )
        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": 2048,
            "hidden_size": 128,
            "intermediate_size": 352,
            "num_hidden_layers": 12,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "tie_word_embeddings": True,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "torch_dtype": "float32",
        }
        (blank / "config.json").write_text(json.dumps(config, indent=1))
        (self.folder / "one-layer.json").write_text(json.dumps(config | {"num_hidden_layers": 1}, indent=1))

    def ingest(self, name, domains):
        if not (self.folder / f"data-{name}/index.json").exists():
            self.run(
                *("-q", "data", "ingest", *(self.folder / f"{d}.jsonl" for d in domains)),
                *("--target", self.folder / "blank", "--holdout", "0.1", "--max-length", "256", "--no-redact"),
                *("--out", self.folder / f"data-{name}"),
            )

    def distill(self, out, target, data, draft, *flags):
        if not (out / "result.json").exists():
            out.parent.mkdir(parents=True, exist_ok=True)
            self.run(
                *("--json", "distill", "--target", target, "--data", self.folder / f"data-{data}", "--draft", draft),
                *("--out", out, "--resume", *flags),
                codes=(0, 3, 4),
            )
        return json.loads((out / "result.json").read_text())

    def prepare(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / "blank/config.json").exists():
            self.make_texts()
            self.make_blank()
        for name, domains in {
            "code": ["code"],
            "mixed": list(DOMAINS),
            "foreign": ["roleplay", "tools"],
        }.items():
            self.ingest(name, domains)
        blank = self.folder / "blank"
        learnt = ("--loss", "ce", "--contexts", "data", "--dtype", "fp32")
        self.distill(
            self.folder / "target-run",
            blank,
            "mixed",
            f"config:{blank}/config.json",
            *learnt,
            "--time-limit",
            f"{self.o.target_seconds}s",
        )
        self.distill(
            self.folder / "update-run",
            blank,
            "code",
            f"model:{self.folder}/target-run/draft",
            *learnt,
            *("--time-limit", f"{self.o.target_seconds / 8:.0f}s", "--lr", "2e-4", "--batch-tokens", "2048"),
        )
        if json.loads((self.folder / "update-run/result.json").read_text())["training"]["kept_step"] == 0:
            sys.exit(f"{self.folder}/update-run left the target as it was: there is no update to measure")

    def measure(self, name):
        cell, folder = CELLS[name], self.folder / "cells" / name
        if (folder / "cell.json").exists():
            return json.loads((folder / "cell.json").read_text())
        target = self.folder / ("update-run" if cell.get("update") else "target-run") / "draft"
        draft, trained = self.folder / "cells/base/run/draft", None
        if cell.get("draft", "") is not None:
            limit = cell.get("seconds", self.o.seconds) * cell.get("share", 1)
            trained = self.distill(
                folder / "run",
                target,
                cell.get("data", "code"),
                cell.get("draft", "prune:1").format(folder=self.folder),
                *(["--time-limit", f"{limit:.0f}s"] if limit else []),
                *cell.get("flags", []),
                "--dtype",
                "fp32",
            )
            draft = folder / "run/draft"
        self.run(
            *("--json", "validate", "--target", target, "--draft", draft, "--data", self.folder / "data-code"),
            *("--out", folder / "gate", "--k", 4, "--parts", "acceptance,rollout,speed", "--no-early-stop"),
            *("--max-requests", 200, "--rollout-requests", 64, "--floor", 0.5, "--allow-stale", "--exit-zero"),
        )
        gate = json.loads((folder / "gate/report.json").read_text())
        row = {"cell": name, "gate": {k: gate.get(k) for k in ("acceptance", "speed", "rollout")}}
        if trained:
            row["training"] = {k: trained["training"][k] for k in ("steps", "tokens", "seconds")}
        (folder / "cell.json").write_text(json.dumps(row, indent=1))
        return row


def show(rows):
    lines = [
        "| cell | steps | tokens | alpha | at positions 1–4 | length, K = 4 | speed-up |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        a, t = row["gate"]["acceptance"], row.get("training", {"steps": "–", "tokens": "–"})
        rollout = a.get("rollout") or row["gate"]["rollout"]
        measured = (row["gate"]["speed"] or {}).get("measured") or {}
        speed = f"{measured['speedup']:.2f} [{measured['ci'][0]:.2f}, {measured['ci'][1]:.2f}]" if measured else "–"
        places = " ".join(f"{x:.2f}" for x in rollout["conditional"])
        lines.append(
            f"| {row['cell']} | {t['steps']} | {t['tokens']} | {a['alpha']:.3f} [{a['ci'][0]:.3f}, {a['ci'][1]:.3f}] "
            f"| {places} | {rollout['length']:.2f} | {speed} |"
        )
    return "\n".join(lines)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("build", type=Path)
    p.add_argument("--folder", type=Path, required=True)
    p.add_argument("--python", default=sys.executable)
    p.add_argument("--seconds", type=float, default=120, help="of a cell's training")
    p.add_argument("--target-seconds", type=float, default=1200)
    p.add_argument("--cells", default=",".join(CELLS))
    o = p.parse_args()
    table, rows = Table(o), []
    table.prepare()
    for name in o.cells.split(","):
        begin = time.monotonic()
        rows.append(table.measure(name))
        print(f"{name}: {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    print(show(rows))


main()
