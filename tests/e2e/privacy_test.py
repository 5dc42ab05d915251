"""Runs every command with umask 000. Other users must not be able to read files with prompts, answers, training data or
state, nor to write to any file."""

import json
import os
import shutil
import stat
import tempfile
import urllib.request
from pathlib import Path

from background import Server
from specdec_run import expect, run, specdec
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-privacy-"))
os.environ["XDG_STATE_HOME"] = str(work / "state")
PRIVATE = (
    *("data", "records", "regenerated", "run", "gate", "bench", "draft-int8"),
    *("traffic", "acceptance.jsonl", "monitor", "loops"),
)
PUBLIC = ("store", "mirror", "loop-store", "here", "m.prom")
LOOP = """
[loop]
target = "../target"
logs = ["../log.jsonl"]
work = "loop"
store = "../loop-store"
channel = "production"
[data]
holdout = 0.5
[distill]
max-steps = 2
batch-tokens = 128
threads = 1
[validate]
parts = "acceptance"
contexts = "data"
threads = 1
force = true
exit-zero = true
[package]
allow-failed = true
"""


def modes(folder):
    return (
        {
            str(p.relative_to(work)): stat.S_IMODE(p.lstat().st_mode)
            for p in [folder, *folder.rglob("*")]
            if not p.is_symlink()
        }
        if folder.is_dir()
        else {str(folder.relative_to(work)): stat.S_IMODE(folder.stat().st_mode)}
    )


def private(name):
    found = modes(work / name)
    wide = {path: oct(mode) for path, mode in found.items() if mode & 0o077}
    expect(found and not wide, f"{name}: {len(found)} files and directories, for this user alone {wide or ''}")


def public(name):
    found = modes(work / name)
    wrong = {path: oct(mode) for path, mode in found.items() if mode & 0o002 or not mode & 0o004}
    expect(
        found and not wrong,
        f"{name}: {len(found)} files and directories that others may read and not write {wrong or ''}",
    )


def serve(words):
    server = Server(words)
    body = {
        "model": "served",
        "messages": [{"role": "user", "content": "a secret"}],
        "max_tokens": 16,
        "temperature": 1,
    }
    models = json.load(urllib.request.urlopen(server.url + "/v1/models"))
    for _ in range(8):
        urllib.request.urlopen(
            urllib.request.Request(
                server.url + "/v1/chat/completions",
                json.dumps(body | {"model": models["data"][0]["id"]}).encode(),
                {"Content-Type": "application/json"},
            )
        ).read()
    server.drain()


os.umask(0)
os.chmod(work, 0o755)
try:
    target, draft, data = work / "target", work / "run/draft", work / "data"
    write_tiny_model(target, layers=2, seed=1)
    write_traffic(work / "log.jsonl", 80)
    with open(work / "log.jsonl", "a") as log:
        log.write('{"messages": 3}\n')
    specdec.data_ingest(work / "log.jsonl", target=target, holdout=0.5, out=data)
    specdec.data_ingest(work / "log.jsonl", records=True, out=work / "records")
    specdec.data_regenerate(data, target=target, out=work / "regenerated", max_tokens=4, threads=1)
    given = {"target": target, "data": data, "threads": 1}
    specdec.distill(**given, draft="prune:1", max_steps=3, batch_tokens=128, out=work / "run")
    gate = {"parts": "acceptance,rollout", "k": 1, "floor": 0.1, "force": True, "contexts": "data"}
    specdec.validate(**given, **gate, draft=draft, out=work / "gate")
    specdec.bench(**given, draft=draft, out=work / "bench", prompts=2, tokens=4)
    specdec.package_quantise(draft=draft, format="int8", out=work / "draft-int8")
    pair = {"target": target, "draft": draft, "report": work / "gate/report.json", "store": work / "store"}
    made = specdec.package(**pair, allow_failed=True, channel="production")
    specdec.package_promote(made.digest, store=work / "store", channel="canary")
    specdec.package_pin(f"{work}/store:production", store=work / "store")
    specdec.package_push(f"{work}/store:production", store=work / "mirror", channel="production")
    specdec.package_gc(store=work / "store")
    records = work / "acceptance.jsonl"
    serve(f"{work}/store:production --record {work}/traffic --record-rejects 1 --acceptance-log {records}")
    expect(
        any(p.suffix == ".jsonl" for p in (work / "traffic").iterdir())
        and list((work / "traffic/acceptance").glob("*.jsonl")),
        "the server has recorded",
    )
    (work / "monitor").mkdir(mode=0o700)
    state = work / "monitor/m.db"
    specdec.monitor_check(package=f"{work}/store:production", source=records, state=state, prom=work / "m.prom")
    specdec.monitor_report(state=state)
    (work / "loops").mkdir(mode=0o700)
    (work / "loops/LOOP.toml").write_text(LOOP)
    (work / "loops/LOOP.toml").chmod(0o600)
    run("loop", "run", work / "loops/LOOP.toml", code=(0, 3, 4, 6), env={"OMP_NUM_THREADS": "1"})
    specdec.init(work / "here")

    for name in PRIVATE:
        private(name)
    for name in PUBLIC:
        public(name)
    known = {"target", "log.jsonl", *PRIVATE, *PUBLIC}
    rest = sorted(p.name for p in work.iterdir() if p.name not in known)
    for name in rest:
        private(name)
    print("ok: and nothing else was written" + (f" but {rest}" if rest else ""))

    # A command uses an existing directory that is open to others, and warns once.
    (work / "open").mkdir(mode=0o777)
    given = f"--target {target} --data {data} --draft prune:1 --max-steps 1 --batch-tokens 128 --threads 1"
    _, _, err = run(f"distill {given} --out {work}/open", code=(0, 3, 4, 6))
    expect(
        err.count("chmod 700") == 1 and "other users can write to this directory" in err,
        f"a directory that others can write to is named once {err}",
    )
    expect(
        all(mode & 0o077 == 0 for path, mode in modes(work / "open").items() if path != "open"),
        "and what is in it is private all the same",
    )
finally:
    shutil.rmtree(work, ignore_errors=True)
