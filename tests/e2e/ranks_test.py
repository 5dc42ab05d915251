"""Runs distill as two processes: they give the draft of one process, only rank 0 writes and prints, a run goes on with
another number of processes, and when one of them is stopped, fails or is killed, the others end with its exit code."""

import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from json_schema import Schemas
from specdec_run import SOURCE, SPECDEC, expect, run, run_json
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-ranks-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
# Variables of a launcher that runs this test say nothing about what it starts.
for name in list(os.environ):
    if re.match(r"(RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|SLURM_|OMPI_|PMI_|PET_|JOB_COMPLETION)", name):
        del os.environ[name]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def command(out, *more):
    where = ["--target", target, "--data", data, "--draft", "prune:1", "--threads", 1, "--out", out]
    return [str(a) for a in ["distill", *where, *more]]


def start(arguments, ranks=2, options=("--json",), more=None):
    """Starts the ranks. `more` maps a rank to further arguments."""
    port, processes = free_port(), []
    for rank in range(ranks):
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        line = [str(SPECDEC), *options, *arguments, *map(str, (more or {}).get(rank, ()))]
        environment = {**os.environ, **{k: str(v) for k, v in place.items()}}
        processes.append(
            subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return processes


def finish(processes):
    """Returns exit code, stdout and stderr of each rank. None may still be there after a minute."""
    done = []
    for rank, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            print("stderr:", process.communicate()[1][-3000:])
            expect(False, f"rank {rank} ends within a minute")
        done.append((process.returncode, out, err))
    return done


def weights(file):
    """Returns the fp32 values of a safetensors file, by name."""
    bytes_ = Path(file).read_bytes()
    (size,) = struct.unpack("<Q", bytes_[:8])
    header = json.loads(bytes_[8 : 8 + size])
    values = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            values[name] = struct.unpack(f"<{(end - begin) // 4}f", bytes_[begin:end])
    return values


def distance(one, other):
    a, b = weights(one / "draft/model.safetensors"), weights(other / "draft/model.safetensors")
    assert a.keys() == b.keys()
    return max(abs(x - y) for name in a for x, y in zip(a[name], b[name], strict=True))


def last_line(err):
    return err.strip().splitlines()[-1] if err.strip() else ""


def lines(file):
    return file.read_bytes().count(b"\n") if file.exists() else 0


def wait_for_steps(processes, out):
    """Waits until a dozen steps of the run are done."""
    while lines(out / "metrics.jsonl") <= 12:
        if any(p.poll() is not None for p in processes):
            print(*(f"rank {r}: {e}" for r, e in enumerate(finish(processes))), sep="\n")
            expect(False, "no rank ends before a dozen steps are done")
        time.sleep(0.02)


def check_equal():
    """One process, two ranks, and ranks that torchrun starts."""
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


def check_stops():
    """A signal to one rank, a rank that is killed, and what follows."""
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
    """Runs of two ranks go on as one process and the other way round."""
    # Rounding grows with steps and rate: at 0.003 the weights of 40 steps differ by 1e-4 between one process and two.
    limits = ["--max-steps", 40, "--batch-tokens", 400, "--lr", 0.0002, "--checkpoint-every", 5]
    straight = work / "straight"
    run_json(*command(straight, *limits), code=(0, 3, 4))
    for before, after in ((2, 1), (1, 2)):
        out = work / f"resumed-{before}-{after}"
        processes = start(command(out, *limits), ranks=before)
        wait_for_steps(processes, out)
        processes[-1].send_signal(signal.SIGTERM)
        expect([e[0] for e in finish(processes)] == [75] * before, f"{before} ranks are stopped")
        ended = finish(start(command(out, *limits, "--resume"), ranks=after))
        expect(all(e[0] in (0, 3, 4) for e in ended), f"{after} go on {[last_line(e[2]) for e in ended]}")
        far = distance(straight, out)
        expect(far < 1e-5, f"and end where one process does, to {far:.1e}")
        again = finish(start(command(out, *limits, "--resume"), ranks=2))
        expect([e[0] for e in again] == [ended[0][0]] * 2, "a run that has ended returns its result on all ranks")


# A launcher of two ranks that kills the second one, once a checkpoint is there, when it runs for the first time.
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
    """The loop runs distill under a launcher, and goes on when a rank is lost."""
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
    check_stops()
    check_resume()
    check_loop()
    check_mistakes()
finally:
    shutil.rmtree(work, ignore_errors=True)
