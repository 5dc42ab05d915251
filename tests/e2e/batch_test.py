"""Runs `specdec loop run` with distill as a batch job, through the scripts that `specdec init` writes. This test
replaces sbatch, scancel, srun and kubectl by programs that run the job on this machine, preempt it once, and answer as
the documented commands do."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from specdec_run import SPECDEC, expect, run
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-batch-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
STEPS = 300  # enough that a job is still training when it is preempted
LOOP = """
[loop]
target = "{target}"
logs = ["{log}"]
work = "loop"
store = "store"
launcher = ["bash", "{submit}"]
[data]
holdout = 0.3
[distill]
max-steps = {steps}
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
# Runs a job. The first job is preempted (SIGTERM) once it has a checkpoint. The file `jobs` gets a line for each job.
JOB = """
echo "$*" >> {folder}/jobs
first=$([ "$(wc -l < {folder}/jobs)" -eq 1 ] && echo 1)
"$@" > {folder}/printed 2>> {folder}/said &
echo $! > {folder}/process
if [ -n "$first" ]; then
  until ls {folder}/loop/runs/*/distill/checkpoints/step-*/state.json > /dev/null 2>&1; do sleep 0.02; done
  kill -TERM "$(cat {folder}/process)"
fi
wait "$(cat {folder}/process)"
"""
SBATCH = """#!/bin/bash
[ "$1 $2 $3" = "--wait --parsable slurm/distill.sbatch" ] || exit 9
echo "7;cluster"
shift 2
exec bash "$@"
"""
KUBECTL = """#!/bin/bash
case "$1 $2" in
"create --filename") cat > {folder}/job.yaml
  ( {python} {folder}/words.py | xargs -0 bash {folder}/job
    tail -n 1 {folder}/code > {folder}/ended ) > /dev/null 2>&1 & ;;
"get job") if [ -s {folder}/ended ]; then echo Complete; fi ;;
"get pods") cat {folder}/ended; rm {folder}/ended ;;
"logs job/"*) echo "what the pod said" ;;
"delete job") if [ "$4" = "--wait=true" ]; then kill -TERM "$(cat {folder}/process)"; fi ;;
*) exit 9 ;;
esac
"""


WORDS = """
import yaml
pod = yaml.safe_load(open("{folder}/job.yaml"))["spec"]["template"]["spec"]
print(*pod["containers"][0]["command"], sep="\\0", end="\\0")
"""


def make_program(folder, name, text):
    (folder / "bin").mkdir(exist_ok=True)
    file = folder / "bin" / name
    file.write_text(text)
    file.chmod(0o755)


def new_folder(name, part, submit, steps=STEPS):
    folder = work / name
    run("init", folder, "--only", part)
    run("init", folder, "--only", "loop")
    settings = LOOP.format(target=work / "target", log=work / "log.jsonl", submit=submit, steps=steps)
    (folder / "LOOP.toml").write_text(settings)
    return folder


def environment(folder):
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", "SPECDEC_POLL_SECONDS": "0.1"}


def check_jobs(folder):
    """Checks that the first job is preempted, and that the second one goes on from its checkpoint to a verdict."""
    _, out, err = run("loop", "run", folder / "LOOP.toml", env=environment(folder))
    jobs = (folder / "jobs").read_text().splitlines()
    expect(len(jobs) == 2 and "--resume" in jobs[1] and "--resume" not in jobs[0], f"{folder.name}: {len(jobs)} jobs")
    expect("promoted" in out and "start 2 of at most" in err, f"the loop goes on: {err[-400:]}")
    state = json.loads(next(folder.glob("loop/runs/*/state.json")).read_text())
    result = state["stages"]["distill"]["result"]
    known = result["schema"].startswith("specdec.distill/") and result["training"]["steps"] == STEPS
    expect(known, "its result is known")


def check_stop(folder, done):
    """Checks that SIGTERM to the loop also stops the job, which saves a checkpoint."""
    loop = subprocess.Popen([SPECDEC, "loop", "run", folder / "LOOP.toml"], env=environment(folder))
    while not list(folder.glob("loop/runs/*/distill/checkpoints/step-*/state.json")):
        if loop.poll() is not None:
            expect(False, f"{folder.name}: the loop ended with {loop.returncode} before a checkpoint")
        time.sleep(0.05)
    loop.send_signal(signal.SIGTERM)
    expect(loop.wait(60) == 75, f"{folder.name}: a stopped loop ends with 75")
    process = int((folder / "process").read_text())
    for _ in range(600):
        if not Path(f"/proc/{process}").exists():
            break
        time.sleep(0.1)
    expect(not Path(f"/proc/{process}").exists(), f"{folder.name}: and its job has ended")
    expect(not done or done in (folder / "asked").read_text(), f"{folder.name}: it was asked to: {done}")


def slurm(name, steps=STEPS):
    folder = new_folder(name, "slurm", "slurm/submit.sh", steps)
    make_program(folder, "sbatch", SBATCH)
    make_program(folder, "srun", "#!/bin/bash\n" + JOB.format(folder=folder))
    stop = f'echo "scancel $*" >> {folder}/asked; kill -TERM "$(cat {folder}/process)"'
    make_program(folder, "scancel", f"#!/bin/bash\n{stop}\n")
    return folder


def kubernetes(name, steps=STEPS):
    folder = new_folder(name, "job", "kubernetes/submit.sh", steps)
    (folder / "job").write_text(JOB.format(folder=folder) + f"echo $? >> {folder}/code\n")
    (folder / "words.py").write_text(WORDS.format(folder=folder))
    make_program(folder, "kubectl", KUBECTL.format(folder=folder, python=sys.executable))
    return folder


try:
    write_tiny_model(work / "target", layers=2, seed=1)
    write_traffic(work / "log.jsonl", 200)
    check_jobs(slurm("slurm"))
    folder = kubernetes("kubernetes")
    check_jobs(folder)
    pod = yaml.safe_load((folder / "job.yaml").read_text())["spec"]["template"]["spec"]
    expect(pod["containers"][0]["workingDir"] == str(folder), "the pod works in the directory of LOOP.toml")
    for make, done in ((slurm, "scancel 7"), (kubernetes, "")):
        folder = make(f"{make.__name__}-stopped", steps=100000)
        (folder / "jobs").write_text("an earlier job\n")  # counts as the first job, so the next one is not preempted
        check_stop(folder, done)
    folder = slurm("refused")
    make_program(folder, "sbatch", "#!/bin/bash\necho 'sbatch: error: the queue is closed' >&2\nexit 1\n")
    run("loop", "run", folder / "LOOP.toml", env=environment(folder), code=75, last_line=["distill ended"])
finally:
    shutil.rmtree(work, ignore_errors=True)
