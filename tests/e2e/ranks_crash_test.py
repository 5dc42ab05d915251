"""Kills one of two ranks of `specdec distill` (`kill -9`) at numbered points. A point is a change that rank 0 makes to
the file system, or a message that rank 0 or rank 1 sends; other processes see no other effects of a rank. The points
cover the start, the preparation, the sums of a step, the updates between steps, evaluations, the writing of a
checkpoint, and the end. After each kill the other rank must end with exit code 75 and name the killed rank, and every
checkpoint must be complete. The same command, run again, must write the draft of an undisturbed run: the same bits on
two ranks, within 1e-5 on one rank. At odd points the ranks share the optimizer's state.

A few points of each kind are drawn, evenly spread, with the seed SPECDEC_FAULT_SEED (SPECDEC_FAULTS=all: all changes
and a hundred messages of each rank). `ranks_crash_test.py BUILD_DIR SEND 1 57 58` kills rank 1 at two messages."""

import hashlib
import json
import os
import shutil
import struct
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import ALL, PRELOAD, chance, must
from rank_processes import distance, last_line, start
from specdec_run import expect, run
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-ranks-crash-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
target, data = work / "target", work / "data"
DONE = (0, 3, 4)
LIMITS = ["--max-steps", 4, "--checkpoint-every", 2, "--evaluate-every", 3, "--batch-tokens", 128, "--lr", 0.001]
STEPS = 4
# The number of rank 1's first message after those that announce it. If rank 1 is killed before this message, rank 0
# does not know that rank 1 was started, and waits for it for ten minutes, as for a machine that is still being
# prepared.
JOINED = 5
tally, lock = {}, threading.Lock()


def command(out, *more):
    where = ["--target", target, "--data", data, "--draft", "prune:1", "--threads", 1, "--seed", 7, "--out", out]
    return ["distill", *where, *LIMITS, "--resume", *more]


def ended(processes):
    """Returns (exit code, stderr) of each rank, and the seconds between the ends of the first and of the last rank."""
    begin, since = time.monotonic(), None
    while any(p.poll() is None for p in processes):
        if since is None and any(p.poll() is not None for p in processes):
            since = time.monotonic()
        if time.monotonic() - (since or begin) > 60:
            for process in processes:
                process.kill()
            return [(p.returncode, p.communicate()[1]) for p in processes], time.monotonic() - (since or begin)
        time.sleep(0.05)
    return [(p.returncode, p.communicate()[1]) for p in processes], time.monotonic() - (since or time.monotonic())


def sha256(file):
    return hashlib.sha256(file.read_bytes()).hexdigest()


def figures_of(out):
    """Returns the parts of result.json that do not depend on the clock."""
    result = json.loads((out / "result.json").read_text())
    training = {k: v for k, v in result["training"].items() if k not in ("seconds", "tokens_per_second")}
    return [training, result["verdict"], result["acceptance"], result["draft"]["id"]]


def phase(out):
    """Returns the phase of the run in which the kill happened, judged by the files in `out`."""
    checkpoints = out / "checkpoints"
    steps = [int(d.name[5:]) for d in checkpoints.glob("step-????????")] if checkpoints.is_dir() else []
    if any(".partial" in f.name for f in checkpoints.rglob("*")):
        return "writing a checkpoint"
    if any(".partial" in f.name for f in out.rglob("*")) or (out / "draft").exists():
        return "publishing"
    if not steps:
        return "starting" if not (out / "run.json").exists() else "preparing"
    return f"after the checkpoint of step {max(steps)}"


def check_left(out, text):
    """Checks what readers of a run may rely on at any time: the newest checkpoints are complete, and a result has its
    draft."""
    # Some files of checkpoints older than the newest three may have been removed already.
    for checkpoint in sorted((out / "checkpoints").glob("step-????????"))[-3:]:
        state = json.loads((checkpoint / "state.json").read_text())
        whole = all(sha256(checkpoint / name) == sha for name, sha in state["files"].items())
        must(whole, f"{text}: {checkpoint.name} is damaged")
    if (out / "result.json").exists():
        must((out / "draft/model.safetensors").exists(), f"{text}: a result without its draft")


def meet(kind, rank, n):
    out = work / f"{kind}-{rank}-{n}"
    struck = work / f"{out.name}.struck"
    fault = {"LD_PRELOAD": str(PRELOAD), f"SPECDEC_{kind}_AT": str(n), "SPECDEC_FAULT_MET": str(struck)}
    more = ["--shard-optimizer"] if n % 2 else []
    codes, seconds = ended(start(command(out, *more), options=["-q"], env={rank: fault}))
    own, (code, err) = codes[rank][0], codes[1 - rank]
    met = struck.read_text() if struck.exists() else "not met"
    text = f"rank {rank} killed at {kind} {n} ({met}): exit {own}, the other's {code} after {seconds:.0f} s"
    finished = (out / "result.json").exists()
    must(own == -9 or own in DONE, f"{text}: {codes[rank][1]}")
    if own == -9:
        at = phase(out)
        with lock:
            tally[at] = tally.get(at, 0) + 1
        # The other rank may also have finished, if it needed nothing more from the killed rank.
        must(code == 75 or (code in DONE and finished), f"{text}: {err}")
        line = last_line(err)
        named = f"rank {rank}" in line and "--resume" in line
        must(code in DONE or named or (at == "starting" and "rank" in line), f"{text}: {err}")
    check_left(out, text)
    ranks = 1 if n % 3 == 0 else 2
    codes, _ = ended(start(command(out, *more), ranks=ranks, options=["-q"]))
    must(all(c in DONE for c, _ in codes), f"{text}, gone on with {ranks}: {codes}")
    if ranks == 2:
        must(figures_of(out) == figures, f"{text}: figures of the resumed run differ: {figures_of(out)}")
        same = sha256(out / "draft/model.safetensors") == sha256(reference / "draft/model.safetensors")
        must(same, f"{text}: the resumed draft differs")
    else:
        far = distance(reference, out)
        must(far < 1e-5, f"{text}: the draft of one process differs by {far:.1e}")
        must(figures_of(out)[0]["steps"] == STEPS, f"{text}: {figures_of(out)[0]}")
    left = [f for f in out.rglob("*") if ".partial" in f.name]
    must(not left, f"{text}: left over: {left}")
    shutil.rmtree(out)
    struck.unlink(missing_ok=True)


def count(kind, rank):
    """Runs both ranks without a fault and returns the number of file changes or messages at which the fault could
    strike the rank."""
    counter = work / "counter"
    counter.write_bytes(bytes(8))
    fault = {"LD_PRELOAD": str(PRELOAD), f"SPECDEC_{kind}_AT": "0", "SPECDEC_FAULT_COUNTER": str(counter)}
    codes, _ = ended(start(command(work / "counted"), options=["-q"], env={rank: fault}))
    must(all(c in DONE for c, _ in codes), f"counting {kind} of rank {rank}: {codes}")
    shutil.rmtree(work / "counted")
    return struct.unpack("q", counter.read_bytes())[0]


def spread(first, last, wanted):
    """Returns numbers of file changes or messages from `first` to `last`: one drawn from each of `wanted` ranges of
    equal length."""
    n = last - first + 1
    parts = min(n, wanted)
    return [chance.randrange(i * n // parts, (i + 1) * n // parts) + first for i in range(parts)]


def points():
    if len(sys.argv) > 2:
        return [(sys.argv[2], int(sys.argv[3]), int(n)) for n in sys.argv[4:]]
    chosen = []
    for kind, rank, usual, most, first in (
        ("KILL", 0, 7, 10**6, 1),
        ("SEND", 0, 6, 100, 1),
        ("SEND", 1, 8, 100, JOINED),
    ):
        n = count(kind, rank)
        mine = spread(first, n, most if ALL else usual)
        print(f"{kind} of rank {rank}: {len(mine)} of {n} points: {mine}", flush=True)
        chosen += [(kind, rank, point) for point in mine]
    return chosen


try:
    write_tiny_model(target, layers=2, seed=1)
    write_traffic(work / "log.jsonl", 24)
    run("data", "ingest", work / "log.jsonl", "--target", target, "--holdout", 0.5, "--out", data, "-q")
    reference = work / "reference"
    codes, _ = ended(start(command(reference), options=["-q"]))
    expect(all(c in DONE for c, _ in codes), f"two ranks that nothing happens to: {codes}")
    figures = figures_of(reference)
    chosen, begin = points(), time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda point: meet(*point), chosen))
    expect(True, f"killed at {len(chosen)} points in {time.monotonic() - begin:.0f} s, while {tally}")
    if len(sys.argv) == 2:
        parts = {"preparing", "writing a checkpoint", "after the checkpoint of step 0", "publishing"}
        expect(parts <= tally.keys(), f"among them {sorted(parts)}")
finally:
    shutil.rmtree(work, ignore_errors=True)
