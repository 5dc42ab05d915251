"""Runs examples/metrics_to_mlflow.py on a run of a tiny model. SPECDEC_MLFLOW_PYTHON names a Python with MLflow
(tests/e2e/mlflow.txt); if it is not set, this test is skipped. MLflow stores its runs in a SQLite file."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from specdec_run import SOURCE, expect, run
from tiny_model import write_tiny_model, write_traffic

PYTHON = os.environ.get("SPECDEC_MLFLOW_PYTHON") or sys.executable
if subprocess.run([PYTHON, "-c", "import mlflow, sqlalchemy, alembic"], capture_output=True).returncode:
    print("SKIPPED: no mlflow in", PYTHON, "(SPECDEC_MLFLOW_PYTHON names one; make nightly does)")
    sys.exit(77)

work = Path(tempfile.mkdtemp(prefix="specdec-examples-"))
environment = dict(os.environ, MLFLOW_TRACKING_URI=f"sqlite:///{work}/mlflow.db")
# Prints the status, tags and parameters of an MLflow run, and the history of one of its metrics.
READ = """
import json, sys
from mlflow.tracking import MlflowClient
client = MlflowClient()
run = client.get_run(sys.argv[1])
history = [(m.step, m.value, m.timestamp) for m in client.get_metric_history(sys.argv[1], sys.argv[2])]
print(json.dumps({"status": run.info.status, "tags": dict(run.data.tags), "params": dict(run.data.params),
                  "history": history}))
"""


def python(*command):
    done = subprocess.run([PYTHON, *map(str, command)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


try:
    target, data, out = work / "target", work / "data", work / "run"
    write_tiny_model(target, layers=3, seed=1)
    write_traffic(work / "log.jsonl", 200)
    run("data", "ingest", work / "log.jsonl", "--target", target, "--out", data, "--holdout", 0.3)
    command = ["distill", "--target", target, "--data", data, "--draft", "prune:1", "--threads", 1]
    run(*command, "--batch-tokens", 256, "--max-steps", 12, "--out", out, code=(0, 3, 4, 6))
    lines = (out / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line) for line in lines if json.loads(line)["kind"] == "train"]

    # Sends a part of the metrics, as if the run had not ended yet; then sends all of them, twice.
    part = work / "part"
    part.mkdir()
    shutil.copy(out / "run.json", part)
    (part / "metrics.jsonl").write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])
    script = SOURCE / "examples/metrics_to_mlflow.py"
    expect(python(script, part).startswith("5 lines sent"), "a line that is still being written waits")
    shutil.copytree(out, part, dirs_exist_ok=True)
    for _ in range(2):
        expect(python(script, part, "--follow").startswith(f"{len(lines)} lines sent"), "all lines are sent")
    run_id = json.loads((part / "mlflow.json").read_text())["run_id"]
    seen = json.loads(python("-c", READ, run_id, "train/loss"))
    expected = [[s["step"], s["loss"], s["time"] * 1000] for s in steps if s["loss"] is not None]
    expect(seen["history"] == expected, f"MLflow has each of {len(expected)} losses once")
    result = json.loads((out / "result.json").read_text())
    expect(seen["status"] == "FINISHED" and seen["tags"]["verdict"] == result["verdict"], "the verdict ends the run")
    expect(seen["params"]["draft"] == "prune:1", "options are parameters")
finally:
    shutil.rmtree(work)
