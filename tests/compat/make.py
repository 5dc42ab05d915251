"""Writes files of all kinds with the program in BUILD, for the test that later versions can read them:
python3 tests/compat/make.py BUILD [NAME]

The files go to tests/compat/NAME (by default the version of BUILD/bin/specdec); an existing folder is not overwritten.
They are made from models of a few thousand parameters. The models themselves can be made again from their seed, so they
are not kept, except those in the package. The folder e440b37 was written without --salt, which that version did not
have."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import closing
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "e2e"), str(HERE)]
from made_report import FIXED_TIME, with_speed  # noqa: E402
from models import write_models  # noqa: E402
from same_behaviour.monitor import counters, pages, write_records  # noqa: E402
from tiny_model import write_traffic  # noqa: E402


class Maker:
    """Stands in for the Observer of tests/same_behaviour when this script calls functions of that folder. Has the
    scratch folder that these functions need, and a normaliser that replaces nothing."""

    class normaliser:
        learn = staticmethod(lambda *_: None)

    def __init__(self, build, scratch):
        self.program, self.scratch = build / "bin/specdec", scratch
        self.environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HOME": str(scratch),
            "OMP_NUM_THREADS": "1",
            "TZ": "UTC",
        }

    def run(self, *arguments, code=0):
        done = subprocess.run(
            [str(self.program), "--json", "-q", *map(str, arguments)],
            cwd=self.scratch,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        allowed = code if isinstance(code, tuple) else (code,)
        if done.returncode not in allowed:
            sys.exit(f"{' '.join(map(str, arguments))}: exit {done.returncode}, expected {allowed}\n{done.stderr}")
        return json.loads(done.stdout) if done.stdout.startswith("{") else {}


def make_run(m):
    """Makes an unfinished run of `distill`, which a signal stops after its first checkpoint."""
    command = [
        "distill",
        "--target",
        "target",
        "--data",
        "data",
        "--out",
        "run",
        "--draft",
        "prune:1",
        "--lr",
        "0.01",
        "--batch-tokens",
        "128",
        "--evaluate-every",
        "20",
        "--evaluate-rows",
        "16",
        "--checkpoint-every",
        "20",
        "--max-steps",
        "200",
        "--threads",
        "1",
        "--seed",
        "1",
    ]
    process = subprocess.Popen([str(m.program), "-q", *command], cwd=m.scratch, env=m.environment)
    latest = m.scratch / "run/checkpoints/latest"
    while process.poll() is None and not (latest.exists() and latest.read_text().strip() != "step-00000000"):
        time.sleep(0.001)
    process.send_signal(signal.SIGTERM)
    if process.wait(timeout=120) != 75:
        sys.exit(
            f"distill ended with {process.returncode} and not with 75: it was done before the signal came, "
            "run this again"
        )
    return command


def make_records(m):
    """Makes recorded traffic and acceptance records, by a server that answers a few requests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = m.scratch / "serve.log"
    server = subprocess.Popen(
        [
            str(m.program),
            "serve",
            "store:production",
            "--k",
            "3",
            "--record",
            "recorded",
            "--port",
            str(port),
            "--threads",
            "1",
        ],
        cwd=m.scratch,
        env=m.environment,
        stderr=log.open("w"),
    )
    while "listening on" not in log.read_text():
        if server.poll() is not None:
            sys.exit("serve does not start: " + log.read_text())
        time.sleep(0.05)
    for i in range(12):
        body = {
            "messages": [{"role": "user", "content": ["red green", "one two three", "up", "down blue"][i % 4]}],
            "max_tokens": 16,
            "seed": i,
            "ignore_eos": True,
            "metadata": {"domain": "colours" if i % 2 else "numbers", "conversation_id": f"c{i}"},
        }
        urllib.request.urlopen(
            urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/chat/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            ),
            timeout=300,
        ).read()
    server.send_signal(signal.SIGTERM)
    if server.wait(timeout=120) != 0:
        sys.exit("the server does not drain: " + log.read_text())


def make_monitor(m, package, report):
    """Makes a monitor's database. It has a history, a transition to drift and the actions after it, the position in a
    file of records, and the counters of a /metrics page."""
    name = lambda model: report["inputs"][model]["fingerprint"]["id"][:12]
    records = m.scratch / "records.jsonl"
    check = [
        "monitor",
        "check",
        "--package",
        package,
        "--source",
        "records.jsonl",
        "--state",
        "monitor.db",
        "--requests-per-day",
        1000,
        "--false-alarm-every",
        "30d",
    ]
    write_records(records, m, 60, 0.0, 1, name("draft"), name("target"))
    m.run(*check)
    with pages(m) as url:
        (m.scratch / "metrics").write_text(counters(400, [400] * 3, [400] * 3, [400] * 3))
        m.run(*check, "--source", f"{url}/metrics")
    write_records(records, m, 120, 0.4, 2, name("draft"), name("target"), "code")
    return m.run(*check, "--confirm", "alarm", "--redistil", "true", "--min-fresh", 0, "--on-drift", "true", code=3)


def main():
    build = Path(sys.argv[1]).resolve()
    version = subprocess.run(
        [build / "bin/specdec", "--version"], capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    out = HERE / (sys.argv[2] if len(sys.argv) > 2 else version)
    if out.exists():
        sys.exit(f"{out} exists: what a version wrote is not written again")
    with tempfile.TemporaryDirectory(prefix="specdec-compat-") as scratch:
        m = Maker(build, Path(scratch))
        write_models(m.scratch)
        write_traffic(m.scratch / "log.jsonl", 24)
        (m.scratch / "salt").write_text(f"{7:064d}\n")
        (m.scratch / "salt").chmod(0o600)
        data = m.run(
            "data", "ingest", "log.jsonl", "--target", "target", "--holdout", 0.5, "--salt", "salt", "--out", "data"
        )
        gate = m.run(
            "validate",
            "--target",
            "target",
            "--draft",
            "draft",
            "--data",
            "data",
            "--out",
            "gate",
            "--parts",
            "acceptance,rollout",
            "--contexts",
            "data",
            "--k",
            3,
            "--rollout-tokens",
            16,
            "--threads",
            1,
            code=(3, 4),
        )
        (m.scratch / "passed.json").write_text(json.dumps(with_speed({**gate, **FIXED_TIME}, 3)))
        package = m.run(
            "package",
            "--target",
            "target",
            "--draft",
            "draft",
            "--report",
            "passed.json",
            "--store",
            "store",
            "--channel",
            "production",
            "--name",
            "tiny",
            "--engines",
            "specdec,vllm",
        )
        said = m.run(
            "generate",
            "--target",
            "store:production",
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
        command = make_run(m)
        make_records(m)
        drift = make_monitor(m, "store:production", gate)
        with closing(sqlite3.connect(m.scratch / "monitor.db")) as db:
            count = {
                table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("history", "transition", "action", "source", "scrape")
            }
        expected = {
            "version": version,
            "data": {"splits": data["splits"]},
            "validate": {"alpha": gate["acceptance"]["alpha"], "requests": gate["acceptance"]["requests"]},
            "package": {"digest": package["digest"], "token_ids": said["token_ids"]},
            "distill": {
                "command": command,
                "steps": 200,
                "checkpoint": (m.scratch / "run/checkpoints/latest").read_text().strip(),
            },
            "monitor": {
                "rows": count,
                "state": drift["state"],
                "verdict": drift["verdict"],
                "requests": drift["evidence"]["requests"],
            },
        }
        out.mkdir()
        for folder in ("data", "run", "recorded", "store"):
            shutil.copytree(
                m.scratch / folder,
                out / folder,
                ignore=shutil.ignore_patterns(".lock", "*.html", "*.lock", "events.out.*"),
            )
        log = out / "store/refs/production.log"
        log.write_text(re.sub(r'@[^"]*"', '@host"', log.read_text()))  # removes the name of the machine
        for file in ("gate/report.json", "monitor.db", "records.jsonl"):
            shutil.copy(m.scratch / file, out / Path(file).name)
        (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    files = [f for f in out.rglob("*") if f.is_file()]
    print(f"{len(files)} files, {sum(f.stat().st_size for f in files)} bytes in {out}")


main()
