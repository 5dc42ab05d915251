"""Runs README's story in a shell: package, serve, 60 requests, another target at the same path, and README's own
monitor line. That line must report stale (exit code 5) at every check until the packaged target is back, and healthy
(0) after enough traffic. No secret of a URL may be left in any output or file."""

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

from specdec_run import SOURCE, SPECDEC, expect, run, specdec
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-story-"))
SHELL = {**os.environ, "PATH": f"{SPECDEC.parent}:{os.environ['PATH']}"}
README_LINE = next(
    line
    for line in (SOURCE / "README.md").read_text().splitlines()
    if line.startswith("specdec monitor check ") and "/metrics" in line
)


class Server:
    def __init__(self, words):
        self.log = work / "serve.log"
        self.log.write_text("")
        self.process = subprocess.Popen(
            [SPECDEC, *shlex.split(f"serve {words} --port 0 --threads 1 --acceptance-log acceptance.jsonl")],
            cwd=work,
            stderr=self.log.open("a"),
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while not (found := re.search(r"listening on (http://\S+)", self.log.read_text())) or not self.is_ready(
            found[1]
        ):
            if self.process.poll() is not None or time.monotonic() > deadline:
                expect(False, "the server starts: " + self.log.read_text()[-500:])
            time.sleep(0.05)
        self.url = found[1]

    @staticmethod
    def is_ready(url):
        try:
            return urllib.request.urlopen(url + "/ready", timeout=5).status == 200
        except OSError:
            return False

    def requests(self, count):
        for i in range(count):
            body = {
                "prompt": ["red green", "one two three", "up", "down blue"][i % 4],
                "max_tokens": 16,
                "seed": i,
                "ignore_eos": True,
            }
            urllib.request.urlopen(
                urllib.request.Request(
                    self.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
                ),
                timeout=60,
            ).read()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(timeout=60) == 0, "the server drains")


def readme_says(url, *more):
    """Runs README's monitor line as it is printed there, except for the port. Returns exit code, stdout and stderr."""
    line = README_LINE.split("#")[0].strip().replace("http://127.0.0.1:8000", url)
    done = subprocess.run(
        " ".join([line, *more]), shell=True, cwd=work, env=SHELL, capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout, done.stderr


def replaced(name, words):
    server = Server(words)
    server.requests(60)
    for time_of_day in ("at once", "again at the next check"):
        code, out, err = readme_says(server.url)
        expect(
            code == 5 and "/metrics serves another target than the draft was validated for" in out,
            f"{name}: README's line says so {time_of_day}: exit {code}, {out.strip()}, {err.strip()}",
        )
        expect("next: specdec init --only loop" in out, "and what to run next")
    server.stop()


try:
    bound, new = work / "bound", work / "new"
    write_tiny_model(bound, layers=2, seed=1)
    write_tiny_model(new, layers=2, seed=2)
    shutil.copytree(bound, work / "draft")  # the target is its own draft, so every drafted token is accepted
    write_traffic(work / "log.jsonl", 24)
    specdec.data_ingest(work / "log.jsonl", target=bound, holdout=0.5, out=work / "data", quiet=True)
    pair = {"target": bound, "draft": work / "draft", "quiet": True}
    gate = {"parts": "acceptance,rollout", "contexts": "data", "k": 3, "threads": 1}
    specdec.validate(**pair, **gate, data=work / "data", out=work / "gate")
    made = {"report": work / "gate/report.json", "store": work / "store", "channel": "production"}
    specdec.package(**pair, **made, allow_failed=True)

    server = Server("store:production --k 3")
    server.requests(60)
    code, out, _ = readme_says(server.url)
    expect(code == 4 and "0 of 10 scrapes judged" in out, f"the first check says how far it is: {out.strip()}")
    server.requests(60)
    code, out, _ = readme_says(server.url)
    expect(
        code == 4 and "1 of 10 scrapes judged: acceptance 1.000, expected 1.000" in out,
        f"and the second: {out.strip()}",
    )
    server.stop()

    stale = "--draft store:production --allow-stale --k 3"
    replaced("another target with the old draft", f"--target {new} {stale}")
    replaced("another target without a draft", f"--target {new}")
    (work / "live").symlink_to(bound)
    (work / "next").symlink_to(new)
    (work / "next").rename(work / "live")
    replaced("another directory under the same name", f"--target {work}/live {stale}")
    code, out, err = readme_says("http://127.0.0.1:1")
    expect(code == 5, f"a server that is down has not named the bound target: {out.strip()} {err.strip()}")
    code, out, _ = run(f"monitor check --package {work}/store:production --state {work}/monitor.db", code=5)
    expect("nobody has named the bound target since" in out, f"nor has the package's own copy: {out.strip()}")

    # Runs the same checks on acceptance records instead of counters.
    records = {
        "package": f"{work}/store:production",
        "source": work / "acceptance.jsonl",
        "state": work / "records.db",
    }
    result = specdec.monitor_check(**records)
    expect(
        result.exit_code == 5
        and "another target than the draft was validated for" in result.reason
        and result.raw["figure"]["name"] == "target",
        f"records are believed, too: {result.reason}",
    )

    server = Server("store:production --k 3")
    codes = []
    while not codes or (codes[-1] == 4 and len(codes) < 40):
        server.requests(12)
        code, out, err = readme_says(server.url)
        codes.append(code)
    expect(
        codes[-1] == 0 and set(codes) == {4, 0} and out.startswith("healthy: 1"),
        f"the bound target is back, and after enough traffic all is well: {codes}, {out.strip()}, {err.strip()}",
    )
    result = specdec.monitor_check(**records)
    expect(result.state == "HEALTHY", f"by records, too: {result.reason}")

    # The secret parts of a source's URL must appear only in the request.
    secret_url = server.url.replace("http://", "http://me:hunter2@") + "/metrics?token=s3cret"
    (work / "source").write_text(secret_url + "\n")
    told = ""
    for source in (secret_url, f"@{work}/source"):
        done = subprocess.run(
            [
                str(SPECDEC),
                "monitor",
                "check",
                "--package",
                f"{work}/store:production",
                "--source",
                source,
                "--state",
                str(work / "secret.db"),
                "--webhook",
                "http://127.0.0.1:1/services/T0/B0/xyz",
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        expect(done.returncode == 4, f"it is read: exit {done.returncode}, {done.stderr.strip()}")
        told += done.stdout + done.stderr
        expect("can read the arguments" in done.stderr, "the webhook's URL among the arguments is warned of")
    expect(
        server.url.replace("http://", "http://***@") + "/metrics?***: every user of this machine" in told,
        "so is the source's",
    )
    told += "".join(run("monitor", "report", "--json", "--state", work / "secret.db")[1:3])
    for file in work.glob("secret.db*"):
        told += file.read_bytes().decode(errors="replace")
        expect(stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 or file.name != "secret.db", f"{file.name} is private")
    expect(
        not any(secret in told for secret in ("hunter2", "s3cret", "B0/xyz")),
        "no secret in stdout, stderr, database, report or history",
    )
    server.stop()
finally:
    shutil.rmtree(work, ignore_errors=True)
