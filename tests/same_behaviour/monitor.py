"""Observes `specdec monitor`, its sources and the requests that it posts."""

import contextlib
import http.server
import json
import random
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time

from same_behaviour.observer import SOURCE, next_second


def write_records(file, o, count, loss, seed, draft, target, domain=""):
    """Appends acceptance records with times long ago. At every position the mean acceptance is 1 - `loss`."""
    rng = random.Random(seed)
    with file.open("a") as out:
        for i in range(count):
            steps = 40
            rates = [max(0.0, min(1.0, 1 - loss + rng.gauss(0, 0.01))) for _ in range(3)]
            reached, accepted, overlap = [], [], []
            here = steps
            for rate in rates:
                reached.append(here)
                here = round(here * rate)
                accepted.append(here)
                overlap.append(round(reached[-1] * rate * 1000))
            row = {
                "schema": "specdec.acceptance/1",
                "t": 1750000000 + 60 * i,
                "s": domain,
                "T": 1.0,
                "q": draft,
                "p": target,
                "n0": 0,
                "D": 3 * steps,
                "e": sum(accepted) + steps,
                "r": reached,
                "a": accepted,
                "o": overlap,
            }
            out.write(json.dumps(row, separators=(",", ":")) + "\n")


@contextlib.contextmanager
def pages(o):
    """Runs a web server that serves the files of the scratch folder as /metrics pages."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            file = o.scratch / self.path.strip("/")
            self.send_response(200 if file.is_file() else 404)
            self.end_headers()
            self.wfile.write(file.read_bytes() if file.is_file() else b"")

        def do_POST(self):
            o.posted.append(f"POST {self.path}\n" + self.rfile.read(int(self.headers["Content-Length"])).decode())
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    o.posted = []
    web = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=web.serve_forever, daemon=True).start()
    o.normaliser.learn(f":{web.server_port}", ":<port>")
    yield f"http://127.0.0.1:{web.server_port}"
    web.shutdown()


def counters(steps, reached, accepted, overlap):
    page = (
        f"specdec:spec_decode_num_drafts_total {steps}\nspecdec:spec_decode_num_draft_tokens_total {3 * steps}\n"
        f"specdec:spec_decode_num_accepted_tokens_total {sum(accepted)}\n"
    )
    for i in range(3):
        page += f'specdec:spec_decode_num_accepted_tokens_per_pos_total{{position="{i}"}} {accepted[i]}\n'
        page += f'specdec:spec_decode_num_reached_tokens_per_pos_total{{position="{i}"}} {reached[i]}\n'
        page += f'specdec:spec_decode_overlap_sum_per_pos_total{{position="{i}"}} {overlap[i]}\n'
    return page


def keep_monitor(o, name, state, *more):
    o.run_json(f"monitor-{name}-status-json", f"monitor status --state {state}")
    o.run(f"monitor-{name}-status", f"monitor status --state {state}")
    o.run_json(f"monitor-{name}-report-json", f"monitor report --state {state}")
    o.run(f"monitor-{name}-report", f"monitor report --state {state}")
    o.keep_database(f"monitor-{name}.sql", state)


def wait_for_one_stretch():
    """Waits, if needed, until the next minute lies within one period of ten minutes. The monitor stores one row and
    shows one line per period."""
    if (left := 600 - time.time() % 600) < 60:
        time.sleep(left + 1)


def observe_monitor(o):
    wait_for_one_stretch()
    fingerprint = lambda result, model: result["inputs"][model]["fingerprint"]["id"][:12]
    report = json.loads((o.scratch / "gate/report.json").read_text())
    draft, target = fingerprint(report, "draft"), fingerprint(report, "target")
    # Uses as sources the records that the earlier `serve` wrote and the /metrics page that it served.
    package = f"store/packages/sha256-{o.package['first']}"
    o.run_json(
        "monitor-served",
        f"monitor check --package {package} --source recorded/acceptance --target target --state served.db",
    )
    next_second()  # so that the report has another period for this check
    o.run("monitor-served-text", f"monitor check --package {package} --source recorded/acceptance --state served.db")
    keep_monitor(o, "served", "served.db")
    with pages(o) as url:
        (o.scratch / "page").write_text(o.page)
        o.run_json("monitor-page", f"monitor check --package {package} --source {url}/page --state page.db")
        sums = [0] * 10
        rng = random.Random(3)
        for look in range(14):
            # The report has one period for each second in which a check changed the verdict, and one for the last
            # check.
            if look in (10, 12, 13):
                next_second()
            loss = 0 if look < 12 else 0.5
            step = [400 + rng.randrange(20)]
            for _ in range(3):
                step.append(int(step[-1] * (1 - loss)))
            sums = [
                sums[0] + step[0],
                *[s + a for s, a in zip(sums[1:4], step[:3])],
                *[s + a for s, a in zip(sums[4:7], step[1:4])],
                *[s + a for s, a in zip(sums[7:10], step[1:4])],
            ]
            (o.scratch / "counters").write_text(counters(sums[0], sums[1:4], sums[4:7], sums[7:10]))
            o.run_json(
                f"monitor-counters-{look:02}",
                f"monitor check --package {package} --source {url}/counters --state counters.db",
            )
        keep_monitor(o, "counters", "counters.db")
        o.run("monitor-error-page", f"monitor check --package {package} --source {url}/absent --state absent.db")
        for engine in ("vllm", "sglang", "trtllm", "llamacpp"):
            shutil.copy(SOURCE / f"tests/monitor/fixtures/{engine}.prom", o.scratch / engine)
            o.run_json(
                f"monitor-engine-{engine}",
                f"monitor check --package {package} --source {url}/{engine} --state {engine}.db",
            )
    # The first records are those of a good draft; later records are those of a draft whose acceptance has dropped.
    # `check` shows how the monitor reacts to each.
    check = (
        "monitor check --package store:production --source records.jsonl --state records.db "
        "--requests-per-day 1000 --false-alarm-every 30d"
    )
    write_records(o.scratch / "records.jsonl", o, 120, 0.0, 1, draft, target)
    o.run_json("monitor-healthy", f"{check} --prom specdec.prom")
    o.keep(
        "monitor-specdec.prom",
        re.sub(
            r"(?m)^(specdec_monitor_last_success_timestamp_seconds) .*",
            r"\1 <now>",
            (o.scratch / "specdec.prom").read_text(),
        ),
    )
    write_records(o.scratch / "records.jsonl", o, 200, 0.3, 2, draft, target, "code")
    (o.scratch / "records.jsonl").open("a").write("not a record\n{}\n")
    acting = "--confirm alarm --redistil 'echo redistilled' --min-fresh 0 --on-drift 'echo drifted > drifted.txt'"
    # History and transitions are sorted by the second, so the next check must happen in a later second.
    next_second()
    with pages(o) as url:
        (o.scratch / "hook").write_text(f"{url}/hook\n")
        (o.scratch / "hook").chmod(0o600)
        o.run_json("monitor-drift", f"{check} {acting} --webhook @hook --alertmanager {url}")
        for i, posted in enumerate(o.posted):
            first, body = posted.split("\n", 1)
            o.keep(f"monitor-posted-{i}", first + "\n" + o.normaliser.any("monitor-posted", body))
            with contextlib.suppress(ValueError):
                o.saw(json.loads(body))
    o.run_json(
        "monitor-job",
        "monitor check --package store:production --source records.jsonl --state job.db --confirm alarm "
        "--redistil true --job job.yaml --job-image specdec:test --loop loop.toml --min-fresh 0",
    )
    o.keep("monitor-job.yaml", (o.scratch / "job.yaml").read_text() if (o.scratch / "job.yaml").exists() else "none\n")
    watch = subprocess.Popen(
        [str(o.program), *shlex.split(f"{check.replace('check', 'watch', 1)} --interval 60")],
        cwd=o.scratch,
        env=o.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    line = watch.stdout.readline()
    watch.send_signal(signal.SIGTERM)
    o.keep("monitor-watch.txt", line + watch.communicate(timeout=60)[0] + f"exit {watch.returncode}\n")
    next_second()
    o.run("monitor-drift-again", f"{check} {acting}")
    next_second()
    o.run("monitor-acknowledge", f"{check} --acknowledge --fail-on warn")
    write_records(o.scratch / "records.jsonl", o, 60, 0.0, 3, draft, target)
    next_second()
    o.run_json("monitor-after", f"{check}")
    next_second()
    o.run_json("monitor-candidate", f"{check} --candidate store:canary --allow-failed")
    keep_monitor(o, "records", "records.db")
    o.run_json(
        "monitor-stale", f"monitor check --package {package} --source records.jsonl --target other --state stale.db"
    )
    keep_monitor(o, "stale", "stale.db")
    write_records(o.scratch / "long.jsonl", o, 1500, 0.1, 4, draft, target)
    o.run_json("monitor-baseline", f"monitor baseline --package {package} --source long.jsonl --out baseline.json")
    o.keep(
        "monitor-baseline.json",
        (o.scratch / "baseline.json").read_text() if (o.scratch / "baseline.json").exists() else "none\n",
    )
    o.run_json(
        "monitor-against-baseline",
        f"monitor check --package {package} --source long.jsonl --baseline baseline.json --state baseline.db",
    )
    (o.scratch / "damaged.db").write_text("no database\n")
    o.run("monitor-error-damaged", "monitor status --state damaged.db")
    o.run("monitor-error-package", "monitor check --package store:nothing --state x.db")
