"""Tests `monitor status` and `monitor report` on a monitor state that an earlier version wrote and on a state that real
checks write. The report page must be one file that loads nothing else, show the contents of the state, and overwrite no
other file."""

import json
import re
import shutil
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from specdec_run import SOURCE, expect, run, specdec

FIXTURES = SOURCE / "tests/compat/0.1.0"
HOSTILE = "</script><img src=x onerror=alert(1)>"
work = Path(tempfile.mkdtemp(prefix="specdec-life-"))


def page(state, file, code=0, **options):
    _, out, _ = run("monitor", "report", "--state", state, "--html", file, code=code, **options)
    if code:
        return "", out
    text = file.read_text()
    loads = [part for part in ("src=", "<link", "@import", "url(") if part in text.replace("img src=x", "")]
    expect(text.startswith("<!doctype html>") and not loads, f"{file.name} is a page that loads nothing: {loads}")
    return text, out


def block(text, name):
    return json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text)[1])


try:
    # The state of version 0.1.0 has no measurements, so the report must take the figures from the verdicts in the
    # state.
    shutil.copy(FIXTURES / "monitor.db", work / "old.db")
    html, out = page(work / "old.db", work / "old.html")
    expect(out.startswith(f"{work}/old.html: watched for "), f"one line says what the page has: {out.strip()}")
    old = block(html, "result")
    expect(old["schema"] == "specdec.monitor_life/1" and old["counts"]["alarms"] >= 1, f"the alarm: {old['counts']}")
    expect(len(old["periods"]) >= 1 and 0 < old["periods"][0]["acceptance"] <= 1, "and the acceptance of its verdicts")

    # Runs a check after each half of the records. The checks write the monitor state of the reports below.
    shutil.copytree(FIXTURES / "store", work / "store")
    lines = (FIXTURES / "records.jsonl").read_text().splitlines()
    state = work / "monitor.db"
    look = ("monitor", "check", "--package", f"{work}/store:production", "--source", work / "records", "--state", state)
    (work / "records").mkdir()
    for i in range(2):
        part = [json.loads(line) for line in lines[i::2]]
        (work / f"records/{i}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
        run(*look, code=(0, 3, 4))
    code, status, _ = run("monitor", "status", "--state", state)
    expect(status.startswith("now: ") and "newest changes:" in status, f"status says what is now: {status}")
    code, report, _ = run("monitor", "report", "--state", state)
    expect(
        report.startswith("watched for ") and "\nnow: " in report,
        f"report tells the life, and now at its end: {report}",
    )
    told = specdec.monitor_report(state=state).raw
    expect(
        told["schema"] == "specdec.monitor_history/1" and told["life"]["periods"], "--json has the history and the life"
    )
    with closing(sqlite3.connect(state)) as connection:
        connection.execute(
            "INSERT INTO transition (time, from_state, to_state, event, reason, evidence)"
            " VALUES ((SELECT max(time) FROM history), ?, 'CANARY', 'on_trial', ?, '{}')",
            (HOSTILE, HOSTILE),
        )
        connection.commit()
    html, _ = page(state, work / "life.html")
    expect("<img" not in html and "&lt;img src=x onerror=alert(1)&gt;" in html, "hostile text stays text")
    expect(html.count("<script") == 4 and html.count("</script") == 4, "and ends no script")
    result, charts = block(html, "result"), block(html, "charts")
    expect(charts[0]["kind"] == "lanes" and len(charts) >= 3, f"{len(charts)} charts")
    expect(result["periods"][-1]["requests"] > 0, "periods have requests")

    # A report page may be replaced by a new one; any other file is not overwritten.
    page(state, work / "life.html")
    (work / "notes.html").write_text("mine")
    run(
        f"monitor report --state {state} --html {work}/notes.html",
        code=2,
        last_line=("notes.html", "exists already"),
    )
    run("monitor", "report", "--state", state, "--html", state, code=2, last_line=("exists already",))
    expect((work / "notes.html").read_text() == "mine", "another file stays as it is")
    run("monitor", "report", "--state", state, "--html", work, code=2, last_line=("is a directory",))
    run("monitor", "report", "--state", state, "--html", work / "none/x.html", code=74, last_line=("none",))
    run("monitor", "report", "--state", work / "none.db", "--html", work / "x.html", code=7, last_line=("none.db",))
    expect(not (work / "x.html").exists(), "without a state there is no page")
finally:
    shutil.rmtree(work, ignore_errors=True)
