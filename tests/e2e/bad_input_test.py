"""Runs commands on hostile and broken files. Each command must end with the exit code of docs/contract.md and a clear
last line that names the file. No command may crash or hang."""

import json
import os
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

from faults import ENOSPC, environment
from specdec_run import SOURCE, SPECDEC, expect, run

MODEL = SOURCE / "cli/demo/assets/target"
work = Path(tempfile.mkdtemp())


def broken_model(name, change):
    folder = work / name
    shutil.copytree(MODEL, folder)
    for file in folder.iterdir():
        file.chmod(0o644)
    change(folder)
    return folder


def config_with(**values):
    def change(folder):
        config = json.loads((folder / "config.json").read_text())
        config.update(values)
        (folder / "config.json").write_text(json.dumps(config))

    return change


def weights(edit):
    def change(folder):
        file = folder / "model.safetensors"
        file.write_bytes(edit(file.read_bytes()))

    return change


def replace_by(make):
    def change(folder):
        file = folder / "model.safetensors"
        file.unlink()
        make(file)

    return change


def header_edit(old, new):
    def edit(data):
        n = struct.unpack("<Q", data[:8])[0]
        header = data[8 : 8 + n].replace(old, new)
        return struct.pack("<Q", len(header)) + header + data[8 + n :]

    return edit


MODELS = {
    # Maps a name to (change of the file, text that the last line must contain).
    "empty": (weights(lambda d: b""), "model.safetensors"),
    "seven-bytes": (weights(lambda d: d[:7]), "model.safetensors"),
    "truncated": (weights(lambda d: d[: len(d) // 2]), "model.safetensors"),
    "trailing": (weights(lambda d: d + b"x"), "model.safetensors"),
    "huge-header": (weights(lambda d: struct.pack("<Q", 2**63) + d[8:]), "model.safetensors"),
    "flipped-header": (weights(lambda d: d[:9] + bytes([d[9] ^ 0x40]) + d[10:]), "model.safetensors"),
    "unknown-dtype": (weights(header_edit(b'"BF16"', b'"QQ16"')), "model.safetensors"),
    "pickle-in-place": (weights(lambda d: b"\x80\x02}q\x00." + d), "model.safetensors"),
    "pickle-only": (
        replace_by(lambda f: (f.parent / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")),
        "pytorch_model.bin",
    ),
    "missing": (replace_by(lambda f: None), "model.safetensors"),
    "directory": (replace_by(lambda f: f.mkdir()), "model.safetensors"),
    "fifo": (replace_by(lambda f: os.mkfifo(f)), "model.safetensors"),
    "sparse": (replace_by(lambda f: (f.touch(), os.truncate(f, 2**40))), "model.safetensors"),
    "no-config": (lambda d: (d / "config.json").unlink(), "config.json"),
    "config-fifo": (lambda d: ((d / "config.json").unlink(), os.mkfifo(d / "config.json")), "config.json"),
    "config-bomb": (lambda d: (d / "config.json").write_text("[" * 100000), "config.json"),
    "config-not-json": (lambda d: (d / "config.json").write_bytes(b"\xff\xfe{}"), "config.json"),
    "hidden-zero": (config_with(hidden_size=0), "hidden_size"),
    "hidden-negative": (config_with(hidden_size=-1), "hidden_size"),
    "hidden-huge": (config_with(hidden_size=10**12), "hidden_size"),
    "heads-odd": (config_with(num_attention_heads=7, num_key_value_heads=2), "config.json"),
    "layers-huge": (config_with(num_hidden_layers=10**9), "num_hidden_layers"),
    "vocab-mismatch": (config_with(vocab_size=1000), "embed_tokens"),
    "theta-zero": (config_with(rope_theta=0, rope_parameters={"rope_type": "default", "rope_theta": 0}), "rope"),
    "unknown-family": (config_with(model_type="frobnicator", architectures=["Frob"]), "frobnicator"),
    "string-size": (config_with(hidden_size="144"), "hidden_size"),
    "tokenizer-broken": (lambda d: (d / "tokenizer.json").write_text("{}"), "tokenizer.json"),
    "tokenizer-missing": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer.json"),
}
for name, (change, text) in MODELS.items():
    folder = broken_model(name, change)
    run("generate", "--target", folder, "--prompt", "a", "--max-tokens", 2, code=7, last_line=(text,), timeout=60)
    print("ok: model", name)

wrong = broken_model(
    "wrong-tokenizer",
    lambda d: (d / "tokenizer.json").write_text(
        (d / "tokenizer.json").read_text().replace('"<|user|>"', '"<|human|>"')
    ),
)
run("generate", "--target", MODEL, "--draft", wrong, "--prompt", "a", code=7, last_line=("tokenizer",), timeout=60)
print("ok: draft with another tokenizer")

# In logs, broken lines are rejected with a reason and good ones are kept.
log = work / "log.jsonl"
good = json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]})
lines = [
    good,
    "{",
    "null",
    "[]",
    '{"messages": 3}',
    '{"messages": []}',
    "\x00\x01",
    "[" * 10000,
    good.replace("hello", "again"),
    '{"mess',
]
log.write_bytes("\n".join(lines).encode() + b'\n{"prompt": "\xff\xfe", "completion": "x"}\n')
run("data", "ingest", log, "--target", MODEL, "--out", work / "data", "--holdout", "0.5", timeout=60)
rejects = [json.loads(line) for line in (work / "data/rejects.jsonl").read_text().splitlines()]
expect(
    len(rejects) == 9 and all(r["reason"] for r in rejects), f"9 of 11 lines rejected with a reason ({len(rejects)})"
)
for name, content in {
    "utf16.jsonl": good.encode("utf-16"),
    "nothing.jsonl": b"",
    "binary.jsonl": os.urandom(4096),
}.items():
    (work / name).write_bytes(content)
    run("data", "ingest", work / name, "--target", MODEL, "--out", work / "none", code=7, last_line=(name,), timeout=60)
    print("ok: log", name)
os.mkfifo(work / "fifo.jsonl")
run(
    f"data ingest {work}/fifo.jsonl --target {MODEL} --out {work}/none",
    code=7,
    last_line=("fifo.jsonl",),
    timeout=60,
)
run(
    f"data ingest {work}/no-such.jsonl --target {MODEL} --out {work}/none",
    code=7,
    last_line=("no-such.jsonl",),
    timeout=60,
)

# A full disk, or an output folder that cannot be created, gives exit code 74 and publishes nothing.
run(
    f"data ingest {log} --target {MODEL} --out {work}/full",
    code=74,
    env=environment(ENOSPC, 3, work),
    timeout=60,
)
expect(not (work / "full").exists(), "nothing published on a full disk")
run("data", "ingest", log, "--target", MODEL, "--out", "/proc/none/out", code=74, timeout=60)

# Usage errors give exit code 2 and name the flag.
for arguments, text in [
    (["generate"], "--target"),
    (["nonsense"], "nonsense"),
    (["generate", "--target", MODEL, "--prompt", "a", "--k", "x"], "--k"),
    (["generate", "--target", MODEL, "--prompt", "a", "--temperature", "-1"], "temperature"),
    (
        [
            "validate",
            "--target",
            MODEL,
            "--draft",
            MODEL,
            "--data",
            work / "data",
            "--out",
            work / "g",
            "--floor",
            "0.2",
        ],
        "--floor",
    ),
    (["--config", work / "no.toml", "doctor"], "no.toml"),
]:
    run(*arguments, code=2, last_line=(text,), timeout=60)
for arguments, hint in ((["loop", "status"], "did you mean 'monitor status'"), (["download"], "did you mean 'fetch'")):
    run(*arguments, code=2, last_line=(hint,), timeout=60)
expect(run("-V")[1].startswith("specdec "), "-V is --version")
print("ok: usage errors")

# Mistakes of a hurried user give exit code 2 and a hint at what to write instead, and leave no file behind.
(work / "models").mkdir()
(work / "run/draft").mkdir(parents=True)
(work / "run/draft/config.json").write_text("{}")
shutil.copytree(work / "data", work / "read")
(work / "encoder").mkdir()
(work / "encoder/config.json").write_text('{"model_type": "bert", "architectures": ["BertModel"]}')
gate = ["validate", "--target", MODEL, "--draft", MODEL, "--out", work / "g"]
os.chdir(work)
for arguments, code, texts in [
    (["generate", "--target", "models/nope", "--prompt", "a"], 7, ("models/nope: no such directory", "hf://models")),
    (["generate", "--target", MODEL, "--draft", "run", "--prompt", "a"], 7, ("did you mean run/draft?",)),
    (["serve", MODEL], 2, ("not a package: use --target",)),
    (["serve", "no-package"], 7, ("no-package: no package", "--target for a model")),
    (["data", "ingest", log, "--target", "encoder", "--out", "none"], 7, ("encoder/config.json", "'bert'")),
    (["generate", "--target", "encoder", "--prompt", "a"], 7, ("encoder/config.json", "'bert'")),
    (["serve", "--target", MODEL, "--port", "70000"], 2, ("--port", "found 70000")),
    (["data", "ingest", log, "--out", "none"], 2, ("--target is required",)),
    (["data", "ingest", "s3://bucket/logs", "--target", MODEL, "--out", "none"], 2, ("s3://", "found a URL")),
    (["data", "regenerate", "read", "--target", MODEL, "--out", "read"], 2, ("--out read", "give a new one")),
    ([*gate, "--data", log], 7, ("log.jsonl", "data ingest wrote", "found a file")),
    ([*gate, "--data", work / "models"], 7, ("models", "without index.json")),
    ([*gate, "--data", "read", "--baseline", "no.json"], 7, ("no.json",)),
    (["distill", "--target", MODEL, "--data", "read", "--draft", "model:no", "--out", "r"], 7, ("no:",)),
    (["distill", "--target", MODEL, "--data", "read", "--draft", "config:no", "--out", "r"], 7, ("no:",)),
    (
        ["distill", "--target", MODEL, "--data", "read", "--draft", "config:models", "--out", "r"],
        7,
        ("models/config.json",),
    ),
    (["generate", "--target", MODEL, "--messages", "no.json"], 7, ("no.json",)),
    (["generate", "--target", MODEL, "--prompt", "a", "--k", "4"], 2, ("--k 4 needs --draft or --suffix",)),
    (["generate", "--target", MODEL, "--prompt", "hi\udcff"], 2, ("--prompt: expected UTF-8",)),
    (["serve", "--target", MODEL, "--k", "4"], 2, ("--k 4 needs --draft or --suffix",)),
    (
        ["package", "--target", "t", "--draft", "d", "--report", "read", "--store", "s"],
        7,
        ("found a directory", "give read/report.json"),
    ),
    (["package", "pull", "nosuch:production", "--store", "s"], 7, ("there is no store nosuch",)),
]:
    _, _, err = run(*arguments, code=code, last_line=texts, timeout=60)
    expect("memory: " not in err, f"refused before a model is loaded: {arguments[0]}")
    expect("70000." not in err, "a whole number is shown as one")
expect(not any((work / name).exists() for name in ("none", "g", "r")), "a refused command leaves nothing behind")
expect((work / "read/index.json").exists(), "the data that were read are there")
print("ok: mistakes of a hurried user")

# LibTorch cannot be found, for example because the user may not read the build's Python environment. The error must say
# how to name LibTorch's folder.
other = work / "other"
(other / "bin").mkdir(parents=True)
(other / "libexec").mkdir()
shutil.copy(SPECDEC, other / "bin/specdec")
(other / "libexec/specdec-engine").symlink_to(SPECDEC.parent.parent / "libexec/specdec-engine")
(other / "libexec/torch-lib").write_text("/nowhere\n")
for env in ({"PATH": "/nowhere", "VIRTUAL_ENV": "/nowhere"}, {"SPECDEC_TORCH_LIB": "/nowhere"}):
    done = subprocess.run(
        [other / "bin/specdec", "generate", "--target", MODEL, "--prompt", "a"],
        capture_output=True,
        env={**os.environ, **env},
    )
    expect(
        done.returncode == 2 and b"SPECDEC_TORCH_LIB" in done.stderr,
        f"the missing LibTorch is named: {done.returncode}, {done.stderr.decode()}",
    )

# A report of an unknown version, and a data directory that does not exist, are refused.
(work / "report.json").write_text('{"schema":"specdec.validate/99"}')
run(
    f"package --target {MODEL} --draft {MODEL} --report {work}/report.json --store {work}/store",
    code=7,
    last_line=("report.json",),
)
run(
    f"validate --target {MODEL} --draft {MODEL} --data {work}/nowhere --out {work}/g",
    code=7,
    last_line=("nowhere",),
)
run("package", "verify", work / "nowhere", code=7, last_line=("nowhere",))
print("ok: reports and packages")
shutil.rmtree(work)
