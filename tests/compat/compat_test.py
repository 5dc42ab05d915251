"""Checks that this version reads the files of earlier versions: python3 tests/compat/compat_test.py BUILD. Each folder
beside this script was written by the version that it is named after (make.py). Its expected.json holds what that
version reported about its files."""

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "e2e"), str(HERE)]
from models import write_models  # noqa: E402
from specdec_run import expect, run, run_json  # noqa: E402


def check_data(work, expected):
    _, stats = run_json("data", "stats", work / "data")
    for split, figures in expected["data"]["splits"].items():
        expect({k: stats["splits"][split][k] for k in figures} == figures, f"data stats: {split} has {figures}")
    run("data", "audit", work / "data", "--target", work / "target")


def check_recorded(work):
    _, records = run_json("data", "ingest", work / "recorded", "--records", "--out", work / "records", "-q")
    expect(records["read_rows"] == 12 and not records["rejects"], "data ingest reads the 12 traffic records")
    rows = [json.loads(line) for line in (work / "records/records.jsonl").read_text().splitlines()]
    expect(
        {row["domain"] for row in rows} == {"colours", "numbers"}
        and all(row["messages"][-1]["role"] == "assistant" for row in rows),
        "with domains and answers",
    )
    _, check = run_json(
        "monitor",
        "check",
        "--package",
        f"{work}/store:production",
        "--source",
        work / "recorded/acceptance",
        "--state",
        work / "new.db",
        code=4,
    )
    evidence = check["evidence"]
    expect(
        (evidence["new_records"], evidence["requests"], evidence["broken_lines"], evidence["sources"]["set_aside"])
        == (12, 12, 0, []),
        f"monitor check reads the 12 acceptance records: {check['reason']}",
    )


def check_package(work, expected):
    digest = expected["package"]["digest"]
    _, verified = run_json("package", "verify", f"{work}/store:production")
    expect(verified["digest"] == digest, "package verify: every digest holds, and the channel names the package")
    _, linted = run_json("package", "lint", f"{work}/store:production")
    expect(linted["gate"]["verdict"] == "pass", "package lint reads the gate's verdict")
    _, listed = run_json("package", "list", "--store", work / "store")
    expect([(p["digest"], p["channels"]) for p in listed["packages"]] == [(digest, ["production"])], "package list")
    _, said = run_json(
        "generate",
        "--target",
        f"{work}/store:production",
        "--prompt",
        "red",
        "--seed",
        7,
        "--verify",
        "coupled",
        "--k",
        3,
        "--max-tokens",
        24,
        "--threads",
        1,
    )
    expect(
        said["token_ids"] == expected["package"]["token_ids"] and said["accepted"] > 0,
        "its pair says the same text, with the draft",
    )


def check_run(work, expected):
    # Runs in the folder of the earlier run with the same arguments, because --resume refuses other options and paths.
    os.chdir(work)
    if not expected["distill"].get("resumes", True):
        # The earlier version had other defaults of batch size and schedule. With the present defaults the options would
        # differ from those of the earlier run, so --resume must be refused.
        run(
            *expected["distill"]["command"],
            "--resume",
            "-q",
            code=2,
            last_line=["--resume needs the options and inputs the run was started with"],
        )
        checkpoint = work / "run/checkpoints" / expected["distill"]["checkpoint"]
        for file in (work / "target").glob("tokenizer*"):
            shutil.copy(file, checkpoint)
        _, text = run_json(
            *("generate", "--target", work / "target", "--draft", checkpoint, "--prompt", "red", "--temperature", 0),
            *("--k", 2, "--max-tokens", 8, "--threads", 1),
        )
        expect(len(text["token_ids"]) > 0, "a run of other defaults is refused; its checkpoint is a draft")
        return
    first = (work / "run/metrics.jsonl").read_text().splitlines()[0]
    code, result = run_json(*expected["distill"]["command"], "--resume", "-q", code=(0, 3, 4))
    steps = [
        json.loads(line)["step"]
        for line in (work / "run/metrics.jsonl").read_text().splitlines()
        if '"kind":"train"' in line
    ]
    expect(
        result["training"]["steps"] == expected["distill"]["steps"]
        and steps == list(range(1, expected["distill"]["steps"] + 1)),
        f"distill --resume goes on after {expected['distill']['checkpoint']} to its last step, each step once",
    )
    expect(
        (work / "run/metrics.jsonl").read_text().splitlines()[0] == first
        and (work / "run/draft/model.safetensors").is_file(),
        "its metrics go on in the same file, and there is a draft",
    )


def check_report(work, expected):
    _, again = run_json(
        "validate",
        "--target",
        work / "target",
        "--draft",
        work / "draft",
        "--data",
        work / "data",
        "--out",
        work / "gate",
        "--parts",
        "acceptance",
        "--contexts",
        "data",
        "--baseline",
        work / "report.json",
        "--threads",
        1,
        "-q",
        code=(3, 4),
    )
    difference = again["baseline"]["alpha_difference"]
    expect(
        again["baseline"]["paired_requests"] == expected["validate"]["requests"] and abs(difference) < 1e-6,
        f"validate --baseline pairs every request, the same draft differs by {difference}",
    )
    expect(abs(again["acceptance"]["alpha"] - expected["validate"]["alpha"]) < 1e-6, "and has the same acceptance")


def check_monitor(work, expected):
    db, told = work / "monitor.db", expected["monitor"]
    _, status = run_json("monitor", "status", "--state", db)
    expect(
        status["state"] == told["state"] and status["verdict"] == told["verdict"],
        f"monitor status: {told['state']}, {told['verdict']}",
    )
    _, report = run_json("monitor", "report", "--state", db)
    expect(
        len(report["history"]) == told["rows"]["history"] and len(report["transitions"]) == told["rows"]["transition"],
        "monitor report: all of history and transitions",
    )
    # The monitor stores its position in a file under the file's device and inode, which a git checkout does not
    # preserve.
    status = (work / "records.jsonl").stat()
    with closing(sqlite3.connect(db)) as connection:
        connection.execute("UPDATE source SET file = ?", (f"{status.st_dev}:{status.st_ino}",))
        connection.commit()
    look = (
        "monitor",
        "check",
        "--package",
        f"{work}/store:production",
        "--source",
        work / "records.jsonl",
        "--state",
        db,
        "--requests-per-day",
        1000,
        "--false-alarm-every",
        "30d",
    )
    _, check = run_json(*look, code=3)
    expect(
        check["verdict"] == told["verdict"]
        and check["evidence"]["new_records"] == 0
        and check["evidence"]["requests"] == told["requests"],
        "monitor check goes on behind the records that were read: the alarm stays, none is read twice",
    )
    with closing(sqlite3.connect(db)) as connection:
        count = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in told["rows"]}
    expect(
        count["history"] >= told["rows"]["history"] and count["action"] == told["rows"]["action"],
        f"what was done is not done again: {count}",
    )


versions = sorted(p for p in HERE.iterdir() if (p / "expected.json").is_file())
expect(versions, "there are files of earlier versions")
for version in versions:
    print(f"written by {version.name}:")
    scratch = Path(tempfile.mkdtemp(prefix="specdec-compat-"))
    try:
        shutil.copytree(version, scratch, dirs_exist_ok=True)
        write_models(scratch)
        expected = json.loads((version / "expected.json").read_text())
        check_data(scratch, expected)
        check_recorded(scratch)
        check_package(scratch, expected)
        check_monitor(scratch, expected)
        check_run(scratch, expected)
        check_report(scratch, expected)
    finally:
        os.chdir(HERE)
        shutil.rmtree(scratch, ignore_errors=True)
