"""Tests `distill --compare` on models of a few thousand parameters. It refuses an unknown kind of draft before any
work, trains and measures each kind, continues after SIGTERM without training a finished kind again, and ranks the kinds
by predicted speed-up."""

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

work = Path(tempfile.mkdtemp(prefix="specdec-comparison-"))
schemas = Schemas(json.loads((SOURCE / "docs/results.json").read_text()))


def wait_for(path, process):
    for _ in range(3000):
        if path.exists():
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    raise SystemExit(f"{path} was not written")


try:
    target, data, out = work / "target", work / "data", work / "kinds"
    write_tiny_model(target, layers=4, seed=1)
    write_traffic(work / "log.jsonl", 300)
    run("data", "ingest", work / "log.jsonl", "--target", target, "--out", data, "--holdout", 0.3)
    command = ["distill", "--target", target, "--data", data, "--threads", 1, "--batch-tokens", 256, "--out", out]
    run(*command, "--compare", "prune:1,medusa", code=2, last_line=["--compare", "found 'medusa'"])
    run(
        "distill",
        "--target",
        "/nowhere",
        "--data",
        "/nowhere",
        "--out",
        out,
        "--compare",
        "prune:1,medusa",
        code=2,
        last_line=["found 'medusa'"],
    )
    run(*command, "--compare", "prune:1,eagle3", "--forecast", code=2, last_line=["--forecast"])
    expect(not out.exists(), "a refused comparison leaves nothing")

    command += ["--max-steps", 900, "--compare", "prune:1,prune:3,eagle3"]
    process = subprocess.Popen(
        [str(SPECDEC), *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(out / "comparison/3-eagle3/checkpoints", process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    expect(process.returncode == 75 and "--resume" in err.splitlines()[-1], f"stopped: {err.splitlines()[-1]}")
    first = out / "comparison/1-prune-1/result.json"
    written = first.stat().st_mtime_ns

    code, result = run_json(*command, "--resume", code=(0, 6))
    expect(first.stat().st_mtime_ns == written, "a finished kind is not trained again")
    expect(json.loads((out / "comparison.json").read_text()) == result, "comparison.json is what is printed")
    problem = schemas.problem(schemas.look_up({"$ref": "#/$defs/DistillComparisonResult"}), result)
    expect(problem is None, f"the result fits docs/results.json {problem or ''}")
    drafts = result["drafts"]
    expect({d["draft"] for d in drafts} == {"prune:1", "prune:3", "eagle3"}, "three kinds")
    speeds = [d["speedup"] for d in drafts]
    expect(speeds == sorted(speeds, reverse=True), f"ranked by speed-up: {speeds}")
    expect(all(d["steps"] == 300 for d in drafts), "each kind has a third of the steps")
    sizes = {d["draft"]: d["parameters"] for d in drafts}
    expect(sizes["prune:3"] - sizes["prune:1"] == 2 * (4 * 16 * 16 + 3 * 16 * 32 + 2 * 16), f"parameters: {sizes}")
    for d in drafts:
        best = {k: v for k, v in d["verify_cost"].items()}
        length, reach = 1, 1
        for overlap in (d["overlap"] + [d["overlap"][-1]] * 8)[: d["k"]]:
            reach *= overlap
            length += reach
        expect(abs(length - d["length"]) < 1e-9, f"{d['draft']}: {length:.3f} tokens a step follow from the overlaps")
        expected = length / (d["k"] * d["draft_cost"] + best[str(d["k"])])
        expect(abs(expected - d["speedup"]) < 1e-9, f"{d['draft']}: the speed-up is tau / (K c + v)")
    expect((code == 0) == (drafts[0]["ci"][0] > 1), f"exit code {code} for {drafts[0]['ci']}")
    _, text, _ = run(*command, "--resume", code=code)
    print(text)
    for word in ("verdict", "speed-up", "prune:3", "comparison.json"):
        expect(word in text, f"the table has {word}")
finally:
    shutil.rmtree(work, ignore_errors=True)
