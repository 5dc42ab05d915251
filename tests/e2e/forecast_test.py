"""Tests `distill --forecast` on models of a few thousand parameters. It makes a forecast, continues after SIGTERM
without training a finished sample again, and refuses bad samples before any work."""

import json
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from json_schema import Schemas
from specdec_run import SOURCE, SPECDEC, expect, run, run_json
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-forecast-"))
schemas = Schemas(json.loads((SOURCE / "docs/results.json").read_text()))


def wait_for(path, process):
    for _ in range(3000):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise SystemExit(f"{path} was not written")


try:
    target, data, out = work / "target", work / "data", work / "run"
    write_tiny_model(target, layers=3, seed=1)
    write_traffic(work / "log.jsonl", 400)
    run("data", "ingest", work / "log.jsonl", "--target", target, "--out", data, "--holdout", 0.3)
    command = ["distill", "--target", target, "--data", data, "--draft", "prune:1", "--threads", 1, "--forecast"]
    command += ["--batch-tokens", 256, "--max-steps", 1200, "--forecast-samples", "10,40,160", "--out", out]

    run(*command[:-4], "--forecast-samples", "10,4000", "--out", out, code=2, last_line=["--forecast-samples", "4000"])
    expect(not out.exists(), "a refused forecast leaves nothing")
    process = subprocess.Popen(
        [str(SPECDEC), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(out / "forecast/160/checkpoints", process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    expect(process.returncode == 75 and "--resume" in err.splitlines()[-1], f"stopped: {err.splitlines()[-1]}")
    first = out / "forecast/10/result.json"
    written = first.stat().st_mtime_ns
    expect(not (out / "forecast.json").exists(), "the forecast is not there yet")
    run(*command, code=2, last_line=["has an earlier forecast", "--resume"])

    code, result = run_json(*command, "--resume", code=(0, 3, 4, 6))
    expect(first.stat().st_mtime_ns == written, "a finished sample is not trained again")
    expect(json.loads((out / "forecast.json").read_text()) == result, "forecast.json is what is printed")
    problem = schemas.problem(schemas.look_up({"$ref": "#/$defs/DistillForecastResult"}), result)
    expect(problem is None, f"the result fits docs/results.json {problem or ''}")
    expect([s["rows"] for s in result["samples"]] == [10, 40, 160], "three samples")
    low, high = result["run"]["acceptance"]["ci"]
    expect(0 <= low <= high <= 1 and result["run"]["seconds"] > 0, f"acceptance in [{low:.3f}, {high:.3f}]")
    expect(result["speed"]["draft_cost"] > 0 and result["speed"]["verify_cost"]["1"] > 0, "measured costs")
    expect(result["verdict"] in ("improved", "no_significant_gain", "inconclusive", "not_worth_it"), result["reason"])

    again, out_text, _ = run(*command, "--resume", code=code)
    for word in ("verdict", "before", "sample", "whole run", "costs", "speed-up", "forecast.json"):
        expect(word in out_text, f"the table has {word}")
    print(out_text)

    # The run that was forecast writes to the same directory.
    run(*[word for word in command if word not in ("--forecast", "--forecast-samples", "10,40,160")], code=(0, 3))
    expect((out / "result.json").exists() and (out / "forecast.json").exists(), "run and forecast in one directory")
finally:
    shutil.rmtree(work, ignore_errors=True)
