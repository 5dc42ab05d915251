#!/usr/bin/env python3
"""metrics_to_mlflow.py RUN [--experiment NAME] [--follow]: sends a training run to MLflow, with the mlflow package.

RUN is the --out of `specdec distill`, while it runs or afterwards. MLFLOW_TRACKING_URI and MLflow's other variables say
where the server is and how to log in:

    pip install mlflow-skinny
    MLFLOW_TRACKING_URI=http://127.0.0.1:5000 python3 metrics_to_mlflow.py run --follow

The values of metrics.jsonl become metrics such as train/loss. The options of run.json become parameters. The verdict
and the reason in result.json become tags. --follow waits for more values until result.json is there. The script may be
called again: it keeps the id of MLflow's run in RUN/mlflow.json and continues after the last step that it has sent."""

import argparse
import json
import time
from pathlib import Path

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

MOST = 1000  # values per request that MLflow accepts
MOST_PARAMS = 100


def values_after(file, sent):
    """Returns the values in the complete lines after the first `sent` lines, and the number of complete lines."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    metrics = []
    for line in map(json.loads, lines[sent:]):
        about = (line.pop("kind"), line.pop("step"), line.pop("time"))
        for name, value in line.items():
            if value is not None:
                metrics.append(Metric(f"{about[0]}/{name}", float(value), about[2] * 1000, about[1]))
    return metrics, len(lines)


def flat(options, name=""):
    """Returns the leaves of nested options as pairs ("a/b", text)."""
    if not isinstance(options, dict):
        return [(name, str(options)[:500])]
    return [leaf for key, value in options.items() for leaf in flat(value, f"{name}/{key}" if name else key)]


def begin(client, run, experiment):
    """Returns the content of RUN/mlflow.json. If there is none, creates MLflow's run and the file first."""
    kept = run / "mlflow.json"
    if kept.exists():
        return json.loads(kept.read_text())
    found = client.get_experiment_by_name(experiment)
    experiment_id = found.experiment_id if found else client.create_experiment(experiment)
    state = {"run_id": client.create_run(experiment_id, run_name=run.resolve().name).info.run_id, "lines": 0}
    options = json.loads((run / "run.json").read_text()).get("options", {})
    client.log_batch(state["run_id"], params=[Param(*leaf) for leaf in flat(options)[:MOST_PARAMS]])
    kept.write_text(json.dumps(state))
    return state


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--experiment", default="specdec")
    parser.add_argument("--follow", action="store_true")
    arguments = parser.parse_args()
    client = MlflowClient()
    state = begin(client, arguments.run, arguments.experiment)
    while True:
        ended = (arguments.run / "result.json").exists()  # checked before the values are read, to miss none
        metrics, lines = values_after(arguments.run / "metrics.jsonl", state["lines"])
        for at in range(0, len(metrics), MOST):
            client.log_batch(state["run_id"], metrics=metrics[at : at + MOST])
        state["lines"] = lines
        (arguments.run / "mlflow.json").write_text(json.dumps(state))
        if ended or not arguments.follow:
            break
        time.sleep(2)
    if ended:
        result = json.loads((arguments.run / "result.json").read_text())
        tags = {"verdict": result["verdict"], "reason": result["reason"]}
        client.log_batch(state["run_id"], tags=[RunTag(key, str(value)[:5000]) for key, value in tags.items()])
        client.set_terminated(state["run_id"])
    print(f"{lines} lines sent to run {state['run_id']}")


main()
