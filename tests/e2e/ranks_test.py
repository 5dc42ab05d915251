"""Runs distill as two processes. They must train the same draft as one process, and only rank 0 may write and print. A
run must continue with another number of processes. When one process is stopped, fails or is killed, the others must end
with its exit code. All of this must also hold if the processes hold the target together (--teacher-parallel)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from json_schema import Schemas
from rank_processes import distance, finish, free_port, last_line, start
from specdec_run import SOURCE, SPECDEC, expect, run, run_json
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-ranks-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


def command(out, *more, draft=None):
    models = draft or ["--target", target, "--draft", "prune:1"]
    return [str(a) for a in ["distill", *models, "--data", data, "--threads", 1, "--out", out, *more]]


def lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_steps(processes, out):
    """Waits until the run has written more than 12 lines of metrics."""
    while lines(out / "metrics.jsonl") <= 12:
        if any(p.poll() is not None for p in processes):
            print(*(f"rank {r}: {e}" for r, e in enumerate(finish(processes))), sep="\n")
            expect(False, "no rank ends before a dozen steps are done")
        time.sleep(0.02)


def check_equal():
    """Checks that one process, two ranks, and two ranks of torchrun train the same draft."""
    short = ["--max-steps", 12, "--batch-tokens", 400, "--accumulate", 2, "--lr", 0.003]
    for loss in ("kl", "lk_hybrid"):
        one, two = work / f"one-{loss}", work / f"two-{loss}"
        run_json(*command(one, *short, "--loss", loss), code=(0, 3, 4))
        ended = finish(start(command(two, *short, "--loss", loss)))
        a, b = (json.loads((d / "result.json").read_text()) for d in (one, two))
        expect(
            ended[0][0] == ended[1][0] and ended[0][0] in (0, 3, 4), f"exit codes {[e[0] for e in ended]} {ended[1][2]}"
        )
        expect(json.loads(ended[0][1]) == b and ended[1][1] == "", "rank 0 alone prints the result")
        expect(ended[1][2] == "", f"and rank 1 nothing: {ended[1][2]}")
        far = distance(one, two)
        expect(far < 1e-5, f"{loss}: the weights of two ranks are those of one process to {far:.1e}")
        same = all(a["training"][k] == b["training"][k] for k in ("steps", "tokens"))
        expect(same and a["verdict"] == b["verdict"], "the figures, too")
        gain = [r["acceptance"]["difference"]["value"] for r in (a, b)]
        expect(abs(gain[0] - gain[1]) < 1e-4, f"the gain is {gain}")
    shared = work / "shared"
    ended = finish(start(command(shared, *short, "--loss", "kl", "--shard-optimizer")))
    expect([e[0] for e in ended] == [ended[0][0]] * 2 and ended[0][0] in (0, 3, 4), f"--shard-optimizer {ended[1][2]}")
    far = distance(work / "two-kl", shared)
    expect(far == 0, f"ranks that share the optimizer's state leave the same draft: {far}")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2"]
    launcher += ["--master-port", str(free_port()), str(SPECDEC), "--json"]
    asked = subprocess.run([sys.executable, "-c", "import torch.distributed.run"], capture_output=True)
    if asked.returncode != 0:
        print("no torchrun: this Python has no torch")
        return
    elastic = work / "elastic"
    done = subprocess.run([*launcher, *command(elastic, *short, "--loss", "kl")], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        print(done.stderr[-3000:])
    far = distance(work / "two-kl", elastic)
    expect(far == 0, f"torchrun starts the same ranks: {far}")
    shown = subprocess.run([*launcher, "distill", "--print-launch"], capture_output=True, text=True)
    found = sorted((json.loads(line) for line in shown.stdout.splitlines()), key=lambda f: f["rank"])
    ranks = [(f["launcher"], f["rank"], f["world_size"], f["local_rank"]) for f in found]
    expect(ranks == [("torchrun", 0, 2, 0), ("torchrun", 1, 2, 1)], f"torchrun's ranks: {ranks}")


def check_heads():
    """Checks EAGLE-3 heads: two ranks train the same head as one process, and one process continues a run of two
    ranks."""
    deep = work / "deep"
    write_tiny_model(deep, layers=5, seed=2)
    head = ["--target", deep, "--draft", "eagle3", "--draft-vocab", 100, "--ttt-steps", 3]
    short = ["--max-steps", 40, "--batch-tokens", 400, "--lr", 0.0002, "--checkpoint-every", 5]
    one, two, stopped = work / "head-one", work / "head-two", work / "head-stopped"
    run_json(*command(one, *short, draft=head), code=(0, 3, 4))
    ended = finish(start(command(two, *short, "--shard-optimizer", draft=head)))
    expect(all(e[0] in (0, 3, 4) for e in ended), f"two ranks train a head: {[last_line(e[2]) for e in ended]}")
    far = distance(one, two)
    expect(far < 1e-5, f"it is that of one process to {far:.1e}")
    processes = start(command(stopped, *short, draft=head))
    wait_for_steps(processes, stopped)
    processes[1].kill()
    expect(finish(processes)[0][0] == 75, "a rank is killed")
    ended = finish(start(command(stopped, *short, "--resume", draft=head), ranks=1))
    far = distance(one, stopped)
    expect(ended[0][0] in (0, 3, 4) and far < 1e-5, f"one process goes on and ends with that head to {far:.1e}")


def check_divided_target():
    """Checks processes that hold the target together, each with a share of it."""
    config = work / "one-layer.json"
    config.write_text(json.dumps({**json.loads((target / "config.json").read_text()), "num_hidden_layers": 1}))
    draft, divided = ["--target", target, "--draft", f"config:{config}"], ["--teacher-parallel", 2]
    short = ["--max-steps", 12, "--batch-tokens", 400, "--lr", 0.0002, "--on-policy", 3]
    one, two, four = work / "whole", work / "divided", work / "divided-by-four"
    run_json(*command(one, *short, draft=draft), code=(0, 3, 4))
    for out, ranks in ((two, 2), (four, 4)):
        ended = finish(start(command(out, *short, *divided, draft=draft), ranks=ranks, options=("--json", "-v")))
        expect(all(e[0] in (0, 3, 4) for e in ended), f"{ranks} ranks: {[last_line(e[2]) for e in ended]}")
        said = f"2 of the {ranks} processes hold the target together"
        expect(said in ended[0][2], f"the log says so: {ended[0][2][:2000]}")
        far = distance(one, out)
        expect(far < 1e-5, f"{ranks} ranks of which two hold a target train the draft of one process to {far:.1e}")
        same = json.loads((one / "contexts.json").read_text()) == json.loads((out / "contexts.json").read_text())
        expect(same, "the target answers the held-out prompts as the whole one does")
    deep = ["--target", work / "deep", "--draft", "eagle3", "--draft-vocab", 100, "--ttt-steps", 3]
    limits = ["--max-steps", 40, "--batch-tokens", 400, "--lr", 0.0002, "--checkpoint-every", 5]
    out = work / "head-divided"
    processes = start(command(out, *limits, *divided, draft=deep), options=())
    wait_for_steps(processes, out)
    processes[1].kill()
    code, _, err = finish(processes)[0]
    expect(code == 75 and "specdec: error: rank 1 (" in last_line(err), f"SIGKILL: the other ends with {code}: {err}")
    ended = finish(start(command(out, *limits, *divided, "--resume", draft=deep)))
    far = distance(work / "head-one", out)
    expect(all(e[0] in (0, 3, 4) for e in ended), f"the run goes on: {[last_line(e[2]) for e in ended]}")
    expect(far < 1e-5, f"and ends with the head of one process to {far:.1e}")
    timed = ["--time-limit", "6s", *divided]
    ended = finish(start(command(work / "timed", *timed, draft=draft)))
    expect(all(e[0] in (0, 3, 4) for e in ended), f"a time limit: {[last_line(e[2]) for e in ended]}")


def check_stops():
    """Checks that both ranks end with code 75 and a checkpoint when one of them gets SIGTERM or is killed."""
    long = ["--max-steps", 100000, "--batch-tokens", 400, "--lr", 0.003, "--checkpoint-every", 10]
    for rank in (0, 1):
        out = work / f"stopped-{rank}"
        processes = start(command(out, *long))
        wait_for_steps(processes, out)
        processes[rank].send_signal(signal.SIGTERM)
        ended = finish(processes)
        said = [last_line(e[2]) for e in ended]
        expect([e[0] for e in ended] == [75, 75], f"SIGTERM to rank {rank} ends both with 75: {said}")
        expect(all("checkpoint saved" in s for s in said), f"both say so: {said}")
        newest = int((out / "checkpoints/latest").read_text().removeprefix("step-"))
        expect(f"at step {newest} " in said[0], f"the checkpoint is that of step {newest}")
    for rank in (0, 1):
        out = work / f"killed-{rank}"
        processes = start(command(out, *long), options=())
        wait_for_steps(processes, out)
        processes[rank].kill()
        ended = finish(processes)
        code, printed, err = ended[1 - rank]
        expect(code == 75 and printed == "", f"SIGKILL of rank {rank}: the other ends with {code} {err[-600:]}")
        told = f"specdec: error: rank {rank} ("
        expect(last_line(err).startswith(told) and "--resume" in last_line(err), f"and says: {last_line(err)}")
        newest = int((out / "checkpoints/latest").read_text().removeprefix("step-"))
        expect(newest >= 10, f"a checkpoint of step {newest} is there")


def check_resume():
    """Checks that one process continues a run of two ranks, and two ranks a run of one process."""
    # The learning rate is small, because rounding errors grow with it: at 0.003 the weights differ by 1e-4 after 40
    # steps.
    limits = ["--max-steps", 40, "--batch-tokens", 400, "--lr", 0.0002, "--checkpoint-every", 5]
    straight = work / "straight"
    run_json(*command(straight, *limits), code=(0, 3, 4))
    for before, after in ((2, 1), (1, 2)):
        out = work / f"resumed-{before}-{after}"
        more = ["--shard-optimizer"] if before == 2 else []
        processes = start(command(out, *limits, *more), ranks=before)
        wait_for_steps(processes, out)
        processes[-1].send_signal(signal.SIGTERM)
        expect([e[0] for e in finish(processes)] == [75] * before, f"{before} ranks are stopped")
        ended = finish(start(command(out, *limits, "--resume"), ranks=after))
        expect(all(e[0] in (0, 3, 4) for e in ended), f"{after} go on {[last_line(e[2]) for e in ended]}")
        far = distance(straight, out)
        expect(far < 1e-5, f"and end where one process does, to {far:.1e}")
        again = finish(start(command(out, *limits, "--resume"), ranks=2))
        expect([e[0] for e in again] == [ended[0][0]] * 2, "a run that has ended returns its result on all ranks")


# A launcher of two ranks. When it runs for the first time, it kills the second rank once there is a checkpoint.
LAUNCHER = r"""
import os, pathlib, subprocess, sys, time
folder, port, command = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
ranks = [subprocess.Popen(command, env={**os.environ, **place, "RANK": str(r)}) for r in (0, 1)]
first = not (folder / "starts").exists()
with open(folder / "starts", "a") as starts:
    starts.write("resumes\n" if "--resume" in command else "starts\n")
while first and not list(folder.glob("loop/runs/*/distill/checkpoints/step-00000010/state.json")):
    time.sleep(0.02)
if first:
    ranks[1].kill()
sys.exit(1 if any([p.wait() for p in ranks]) else 0)
"""
LOOP = """
[loop]
target = "../target"
logs = ["../log.jsonl"]
work = "loop"
store = "store"
launcher = ["{python}", "launcher.py", "{folder}", {port}]
[data]
holdout = 0.3
[distill]
max-steps = 400
batch-tokens = 400
checkpoint-every = 10
threads = 1
[validate]
parts = "acceptance"
contexts = "data"
threads = 1
floor = 0.01
force = true
exit-zero = true
[package]
allow-failed = true
"""


def check_loop():
    """Checks that the loop runs distill under a launcher, and continues the run after a rank is lost."""
    folder = work / "looped"
    folder.mkdir()
    (folder / "launcher.py").write_text(LAUNCHER)
    settings = LOOP.format(python=sys.executable, folder=folder, port=free_port())
    (folder / "LOOP.toml").write_text(settings)
    _, plan = run_json("loop", "run", folder / "LOOP.toml", "--plan")
    launchers = {s["stage"]: s.get("launcher", [])[:2] for s in plan["stages"]}
    expect(launchers["distill"] == [sys.executable, "launcher.py"] and not launchers["data"], f"the plan: {launchers}")
    _, out, err = run("loop", "run", folder / "LOOP.toml")
    starts = (folder / "starts").read_text().split()
    expect(starts == ["starts", "resumes"], f"distill starts and goes on: {starts}")
    expect("distill: a process was lost" in err and "promoted" in out, f"the loop says so: {err[-400:]}")
    (folder / "LOOP.toml").write_text(settings.replace("launcher.py", "nothing.py").replace("400\n", "401\n", 1))
    run("loop", "run", folder / "LOOP.toml", code=2, last_line=["distill ended with exit code 2"])


def check_mistakes():
    processes = start(command(work / "differ", "--max-steps", 3), more={1: ["--seed", 7]})
    ended = finish(processes)
    expect([e[0] for e in ended] == [2, 2], f"other options on a rank: {[last_line(e[2]) for e in ended]}")
    expect("options.seed" in last_line(ended[0][2]), "the option is named")
    expect(not (work / "differ").exists(), "and nothing is written")
    ended = finish(start(command(work / "one-kl", "--max-steps", 3)))
    told = [last_line(e[2]) for e in ended]
    expect([e[0] for e in ended] == [2, 2] and "earlier run" in told[0] and "rank 0 (" in told[1], f"{told}")
    random = ["--target", target, "--draft", f"config:{work / 'one-layer.json'}", "--max-steps", 3]
    for counts, words in (
        ([3, 3], ["3: 2 processes were started"]),
        ([2, 1], ["the processes were given different numbers"]),
        ([2], ["2: 1 process was started"]),
        ([4] * 4, ["4 ranks cannot hold this target together", "2 attention heads"]),
    ):
        each = {r: ["--teacher-parallel", n] for r, n in enumerate(counts)}
        ended = finish(start(command(work / "y", draft=random), ranks=len(counts), more=each))
        told = [last_line(e[2]) for e in ended]
        expect(all(e[0] == 2 for e in ended) and all(w in told[0] for w in words), f"{told}")
    for more, word in (
        (["--draft", "prune:1"], "prune takes whole layers"),
        (["--draft", "eagle3", "--forecast"], "no --forecast"),
        (["--draft", "eagle3", "--teacher", "labels:x"], "--teacher target"),
    ):
        line = command(work / "y", "--teacher-parallel", 2, draft=["--target", target, *more])
        run(*line, code=2, last_line=["--teacher-parallel 2", word])
    run(*command(work / "x"), code=2, env={"RANK": "2", "WORLD_SIZE": "2"}, last_line=["RANK is 2", "WORLD_SIZE is 2"])
    run("distill", "--print-launch", code=2, env={"RANK": "1"}, last_line=["WORLD_SIZE is not set"])
    batch = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"}
    run("distill", "--print-launch", code=2, env=batch, last_line=["srun", "SLURM_NTASKS"])
    document = json.loads((SOURCE / "docs/results.json").read_text())
    slurm = {"SLURM_PROCID": "1", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "n[3-4]"}
    for environment in ({}, slurm):
        _, found = run_json("distill", "--print-launch", env=environment)
        problem = Schemas(document).problem(document["$defs"]["DistillLaunch"], found)
        expect(problem is None, f"--print-launch fits docs/results.json: {found} {problem or ''}")
    expect(found["master_addr"] == "n3" and found["launcher"] == "slurm", "Slurm's first node")
    code, text, _ = run("distill", "--print-launch")
    expect("torchrun" in text and "srun" in text and "mpirun" in text, "without a launcher: how to start one")


target, data = work / "target", work / "data"
try:
    write_tiny_model(target, layers=3, seed=1)
    write_traffic(work / "log.jsonl", 300)
    run("data", "ingest", work / "log.jsonl", "--target", target, "--out", data, "--holdout", 0.3)
    check_equal()
    check_heads()
    check_divided_target()
    check_stops()
    check_resume()
    check_loop()
    check_mistakes()
finally:
    shutil.rmtree(work, ignore_errors=True)
