"""Sends SIGTERM to every long command at random moments. The command must end within 10 s with one line on stderr, with
exit code 75 if it can be resumed and 143 if it cannot, and leave no partial files. After exit code 75 the same command
must continue and complete the work."""

import json
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from specdec_run import SPECDEC, expect, run, specdec
from tiny_model import write_tiny_model, write_traffic

rng = random.Random(int(os.environ.get("STOP_SEED", "1")))
work = Path(tempfile.mkdtemp(prefix="specdec-stop-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


def stop(command, after, stdin=None, group=False):
    """Starts a command and sends SIGTERM after `after` seconds. With `group`, sends it to all processes of the command,
    as systemd does. Returns the exit code, the seconds from the signal to the end, and stderr."""
    process = subprocess.Popen(
        [SPECDEC, *shlex.split(command)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        stdin=stdin,
        text=True,
        start_new_session=group,
    )
    time.sleep(after)
    asked = time.monotonic()
    os.killpg(process.pid, signal.SIGTERM) if group else process.send_signal(signal.SIGTERM)
    try:
        _, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise SystemExit(f"{command}: still there 30 s after SIGTERM") from None
    return process.returncode, time.monotonic() - asked, err


def check(name, command, codes, longest, times=3, clean=None):
    """Runs the command several times, and stops each run at a random moment of its first `longest` seconds. A run must
    exit with one of `codes`. If a run ended before the signal, 0 or a verdict's exit code is also accepted."""
    seen = []
    for _ in range(times):
        if clean:
            shutil.rmtree(clean, ignore_errors=True)
        after = rng.uniform(0, longest)
        code, seconds, err = stop(command, after)
        last = err.strip().splitlines()[-1] if err.strip() else ""
        assert seconds < 10, (name, after, seconds, err)
        # -SIGTERM is allowed, because the signal may arrive before the program has installed its handler.
        assert code in (*codes, 0, 3, 4, 6, -signal.SIGTERM), (name, after, code, err)
        assert code not in codes or last.startswith("specdec: error: ") or after < 0.2, (name, after, err)
        seen.append(f"{after:.2f}s: {code}")
    print("ok:", name, ", ".join(seen), flush=True)


class SilentServer:
    """Accepts connections and never answers."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.kept = []
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                self.kept.append(self.socket.accept())
            except OSError:
                return

    @property
    def url(self):
        return f"http://127.0.0.1:{self.socket.getsockname()[1]}"


LOOP = """
[loop]
target = "target"
logs = ["log.jsonl"]
work = "loop"
store = "loop-store"
regenerate = "never"
[data]
holdout = 0.3
[distill]
max-steps = 20000
threads = 1
"""

try:
    write_tiny_model(work / "target", layers=3, seed=1)
    write_traffic(work / "log.jsonl", 300)
    write_traffic(work / "much.jsonl", 60000)
    target, data = work / "target", work / "data"
    specdec.data_ingest(work / "log.jsonl", target=target, out=data, holdout=0.3)
    ingest = f"data ingest {work}/much.jsonl --target {target} --no-dedup --out {work}"
    check("data ingest", f"{ingest}/much", {143}, 1.5, clean=work / "much")
    run(f"{ingest}/whole")
    expect((work / "whole/index.json").exists(), "ingest runs after it")

    distill = f"distill --target {target} --data {data} --draft prune:1 --threads 1 --max-steps 3000 --batch-tokens 128"
    check("distill, anew", f"{distill} --out {work}/run", {75}, 1.2, times=4, clean=work / "run")
    shutil.rmtree(work / "run", ignore_errors=True)
    stops = 0
    for _ in range(8):  # stops the same run again and again
        code, seconds, err = stop(f"{distill} --out {work}/run --resume", rng.uniform(0.2, 1))
        assert seconds < 10 and code in (75, 0, 3, -signal.SIGTERM), (code, err)
        stops += code == 75
        if code in (0, 3):
            break
    run(f"{distill} --out {work}/run --resume", code=(0, 3))
    run(f"{distill} --out {work}/straight", code=(0, 3))
    expect(
        stops >= 1
        and (work / "run/draft/model.safetensors").read_bytes()
        == (work / "straight/draft/model.safetensors").read_bytes(),
        f"a run that was stopped {stops} times ends with the bits of one that was not",
    )

    draft = work / "run/draft"
    judged = f"--target {target} --draft {draft} --data {data} --threads 1"
    check("validate", f"validate {judged} --no-early-stop --out {work}/gate", {143}, 3, times=5)
    check("bench", f"bench {judged} --prompts 200 --out {work}/bench", {143}, 3)
    prompt = "--prompt 'red green' --max-tokens 250"
    check("generate", f"generate --target {target} {prompt} --threads 1", {143}, 0.6)
    specdec.validate(target=target, draft=draft, data=data, threads=1, floor=0.01, force=True, out=work / "report")
    pack = f"package --target {target} --draft {draft} --report {work}/report/report.json --allow-failed"
    check("package", f"{pack} --store {work}/store", {143}, 0.2, clean=work / "store")
    shutil.rmtree(work / "store", ignore_errors=True)
    run(f"{pack} --store {work}/store --channel c")
    push = f"package push {work}/store:c --store {work}/other"
    check("package push", push, {75}, 0.2, clean=work / "other")
    check("serve, until it listens", f"serve --target {target} --port 0 --threads 1", {143}, 0.3)
    anew = f"data regenerate {data} --target {target} --out {work}/anew --max-tokens 60 --threads 1"
    check("data regenerate", anew, {75}, 2.5, clean=work / "anew")

    label = f"data label {data} --target {target} --threads 1 --resume --out {work}"
    check("data label", f"{label}/labels", {75}, 1.5, times=4)
    run(f"{label}/labels")
    run(f"{label}/whole-labels")
    expect(
        (work / "labels/index.json").exists()
        and [(s["num_rows"], s["file"]) for s in json.loads((work / "labels/index.json").read_text())["shards"]] != [],
        "labels that were stopped are completed",
    )

    silent = SilentServer()
    label = f"data label {data} --target {silent.url} --model m --out {work}/mute-labels"
    check("data label at a silent server", label, {75}, 1, clean=work / "mute-labels")
    anew = f"data regenerate {data} --target {silent.url} --target-files {target} --out {work}/mute"
    check("data regenerate at a silent server", anew, {75}, 1, clean=work / "mute")
    look = f"monitor check --package {work}/store:c --source {silent.url}/metrics --state {work}/monitor.db"
    check("monitor check at a silent server", look, {75}, 1)
    os.environ |= {"HF_ENDPOINT": silent.url, "HF_HUB_CACHE": str(work / "hub")}
    check("fetch from a silent hub", "fetch org/name", {75}, 1)

    (work / "LOOP.toml").write_text(LOOP)
    check("loop run", f"loop run {work}/LOOP.toml", {75}, 4, times=4)
    state = [json.loads(f.read_text()) for f in work.glob("loop/runs/*/state.json")]
    expect(len(state) <= 1, "and goes on with the run that it began")
    shutil.rmtree(work / "loop", ignore_errors=True)
    code, seconds, err = stop(f"loop run {work}/LOOP.toml", 4, group=True)
    saved = list(work.glob("loop/runs/*/distill/checkpoints/step-*"))
    expect(code == 75 and len(saved) > 1 and "exit code 75" in err, "a stop of the whole group saves: " + err[-200:])
    (work / "LOOP.toml").write_text(LOOP.replace("20000", "20"))
finally:
    shutil.rmtree(work, ignore_errors=True)
