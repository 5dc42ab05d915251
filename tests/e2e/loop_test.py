"""Tests `specdec loop run`. If the loop is killed at any change that it makes to the file system, it must resume and
never train twice. An interrupted run must resume although the logs have grown. After a verdict, new data must wait
until the cooldown is over. Answers that another model wrote must be regenerated."""

import json
import os
import shutil
import tempfile
from pathlib import Path

from faults import Subject, must, under_faults
from specdec_run import expect, run, run_json
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-loop-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
SETTINGS = """
[loop]
target = "../target"
logs = ["*.jsonl"]
work = "loop"
store = "store"
channel = "{channel}"
regenerate = "{regenerate}"
cooldown = "{cooldown}"
keep = 2
[data]
holdout = 0.5
[regenerate]
max-tokens = 4
threads = 1
[distill]
max-steps = 40
checkpoint-every = 20
evaluate-every = 20
batch-tokens = 128
threads = 1
[validate]
parts = "acceptance"
contexts = "data"
threads = 1
floor = {floor}
force = true
exit-zero = {exit_zero}
[package]
allow-failed = true
"""


def new_loop(name, channel="production", regenerate="auto", cooldown="24h", floor=0.01, exit_zero="true"):
    folder = work / name
    folder.mkdir(exist_ok=True)
    shutil.copy(work / "log.jsonl", folder / "day-1.jsonl")
    (folder / "LOOP.toml").write_text(
        SETTINGS.format(channel=channel, regenerate=regenerate, cooldown=cooldown, floor=floor, exit_zero=exit_zero)
    )
    return folder


def loop(folder, *more, code=0, env=None):
    return run("loop", "run", folder / "LOOP.toml", *more, code=code, env=env, timeout=120)


def loop_json(folder, *more, code=0):
    return run_json("loop", "run", folder / "LOOP.toml", *more, code=code, timeout=120)[1]


def states(folder):
    files = sorted(
        folder.glob("loop/runs/*/state.json"), key=lambda f: f.stat().st_mtime_ns
    )  # in ns, because two runs may begin in the same second
    return [json.loads(f.read_text()) for f in files]


def trainings_of(folder):
    return {str(f): f.stat().st_mtime_ns for f in folder.glob("loop/runs/*/distill/result.json")}


def add_day(folder, n):
    write_traffic(folder / f"day-{n}.jsonl", 20, seed=n)


# --- killed at every change, faults, power cuts ---


class Loop(Subject):
    name, word, least, often = "loop", "loop", 1, 1

    def environment(self, folder):
        return {"OMP_NUM_THREADS": "1"}

    def prepare(self, folder):
        new_loop(folder.name)

    def command(self, folder):
        return ["loop", "run", folder / "LOOP.toml"]

    def check(self, folder, text):
        for state in folder.glob("loop/runs/*/state.json"):
            json.loads(state.read_text())

    def done(self, folder, text):
        _, listed = run_json("package", "list", "--store", folder / "store")
        must(
            any(p["channels"] == ["production"] for p in listed["packages"]),
            f"{text}: done, and nothing is promoted: {listed}",
        )

    def finish(self, folder, text):
        add_day(folder, 2)  # the logs grow meanwhile
        interrupted = any("data" in s["stages"] and s["verdict"] == "running" for s in states(folder))
        before = {f: f.read_bytes() for f in folder.glob("loop/runs/*/distill/draft/model.safetensors")}
        result = loop_json(folder)
        must(result["verdict"] == "promoted", f"{text}: {result}")
        if interrupted:
            must(
                len(states(folder)) == 1 and len(result["inputs"]["logs"]) == 1,
                f"{text}: the interrupted run goes on, with the logs of then",
            )
            must(
                "power cut" in text or all(f.read_bytes() == b for f, b in before.items()),
                f"{text}: a draft that was there was trained again",
            )
        loop(folder)  # trains on the second day's logs, unless the run above did
        # After a power cut, partial files may remain in the store. The store has many writers, so files that another
        # process may still be writing are kept for a day. A kill ends only the loop itself. A power cut also ends the
        # loop's stages, which write to the store.
        shared = ("store/tmp", "store/refs") if "power cut" in text else ()
        left = [str(p) for p in folder.rglob("*partial*") if not any(folder / name in p.parents for name in shared)]
        must(not left, f"{text}: left over: {left}")
        _, listed = run_json("package", "list", "--store", folder / "store")
        must(
            all(p["problem"] == "" for p in listed["packages"])
            and any(p["channels"] == ["production"] for p in listed["packages"]),
            f"{text}: {listed}",
        )
        must(len(listed["packages"]) <= 2, f"{text}: a package twice")
        before = trainings_of(folder)
        loop(folder)
        must(trainings_of(folder) == before, f"{text}: the same trigger trained again")


try:
    write_tiny_model(work / "target", layers=2, seed=1)
    write_traffic(work / "log.jsonl", 80)

    # --- --plan writes nothing ---
    plain = new_loop("plain")
    _, plan = run_json("loop", "run", plain / "LOOP.toml", "--plan")
    expect(
        [s["stage"] for s in plan["stages"]] == ["data", "regenerate", "distill", "validate", "package"]
        and not (plain / "loop").exists(),
        "the plan",
    )
    expect(plan["stages"][1]["when"].startswith("if another model"), "nobody knows yet who wrote the answers")
    result = loop_json(plain)
    expect(
        result["verdict"] == "promoted" and result["key"] == plan["key"] and "regenerate" not in result["stages"],
        "promoted",
    )
    expect(
        {"schema", "verdict", "started", "seconds", "tool_version", "inputs"} <= result.keys()
        and result["seconds"] > 0,
        "the fields that every result has",
    )
    expect(
        all(s["when"] == "done" for s in run_json("loop", "run", plain / "LOOP.toml", "--plan")[1]["stages"]),
        "the plan of what is done",
    )

    # --- old runs are removed ---
    first = result["key"]
    for day in (2, 3):
        add_day(plain, day)
        newest = loop_json(plain)["key"]
    expect(
        len(states(plain)) == 2
        and first not in [s["key"] for s in states(plain)]
        and states(plain)[-1]["key"] == newest,
        "keep = 2: the oldest run went",
    )

    # --- after a verdict there is a cooldown ---
    bad = new_loop("bad", floor=0.99, exit_zero="false", channel="candidate")
    result = loop_json(bad, code=3)
    expect(
        result["verdict"] == "validate failed" and result["stopped"]["exit_code"] == 3 and not (bad / "store").exists(),
        "a failed gate promotes nothing",
    )
    said = states(bad)[-1]["stopped"]
    expect(
        "floor 0.99" in said["reason"]
        and "short of it" in said["reason"]
        and said["change"].startswith(("[distill] max-steps = 160", "[loop] draft")),
        "verdict, figure, floor, and what to change: " + said["change"],
    )
    log = next(bad.glob("loop/runs/*/log.txt")).read_text().splitlines()
    expect(
        said["reason"] in log[-1]
        and said["change"] in log[-1]
        and any(line.startswith("validate   exit 3") for line in log),
        "in log.txt, too",
    )
    _, _, err = loop(bad, code=3)
    expect(said["change"] in err, "and when it is asked again")
    began = trainings_of(bad)
    result = loop_json(bad, code=3)
    expect(
        result["verdict"] == "unchanged" and trainings_of(bad) == began,
        "the same data again: the same answer, nothing runs",
    )
    add_day(bad, 2)
    result = loop_json(bad, code=75)
    expect(result["verdict"] == "cooldown" and len(states(bad)) == 1, "new data within the cooldown: 75")
    _, plan = run_json("loop", "run", bad / "LOOP.toml", "--plan", code=75)
    expect(plan["verdict"] == "refused", "the plan says so too")
    expect(loop_json(bad, "--force", code=3)["verdict"] == "validate failed" and len(states(bad)) == 2, "--force runs")
    text = (bad / "LOOP.toml").read_text()
    floor = text.replace("floor = 0.99", "floor = 0.01").replace("exit-zero = false", "exit-zero = true")
    (bad / "LOOP.toml").write_text(floor)
    began = trainings_of(bad)
    result = loop_json(bad)
    expect(
        result["verdict"] == "promoted" and trainings_of(bad) == began and len(states(bad)) == 2,
        "another floor: the gate runs again, and nothing is trained",
    )
    (bad / "LOOP.toml").write_text(floor.replace("max-steps = 40", "max-steps = 30"))
    result = loop_json(bad)
    expect(
        result["verdict"] == "promoted" and trainings_of(bad) != began and len(states(bad)) == 2,
        "another training: from its beginning, on the same data",
    )
    warm = new_loop("warm", floor=0.99, exit_zero="false", cooldown="0")
    loop(warm, code=3)
    add_day(warm, 2)
    loop(warm, code=3)
    expect(len(states(warm)) == 2, "no cooldown: new data is tried at once")
    add_day(warm, 3)
    (warm / "LOOP.toml").write_text(
        (warm / "LOOP.toml").read_text().replace("0.99", "0.01").replace("exit-zero = false", "exit-zero = true")
    )
    loop(warm)
    expect(states(warm)[-1]["verdict"] == "promoted", "other settings have no verdict yet")

    # --- paths are relative to LOOP.toml, not to the shell's directory ---
    beside = new_loop("beside")
    write_tiny_model(beside / "own/draft", layers=1, seed=2)
    text = (
        (beside / "LOOP.toml")
        .read_text()
        .replace('work = "loop"', 'work = "loop"\ndraft = "model:own/draft"')
        .replace("[distill]", '[distill]\nrejects = "gone"')
    )
    (beside / "LOOP.toml").write_text(text)
    _, plan = run_json("loop", "run", beside / "LOOP.toml", "--plan")
    expect(
        f"model:{beside}/own/draft" in next(s for s in plan["stages"] if s["stage"] == "distill")["arguments"],
        "draft = model:DIR",
    )
    _, _, err = loop(beside, code=7)
    expect(
        "distill ended with exit code 7: " in err
        and "--rejects gone: expected a directory" in err
        and "To change: " in err,
        "a stage's own error is in the last line, with what to change",
    )

    # --- answers that another model wrote are regenerated ---
    other = new_loop("other", channel="candidate")
    rows = [json.loads(line) for line in (other / "day-1.jsonl").read_text().splitlines()]
    (other / "day-1.jsonl").write_text(
        "".join(json.dumps({**row, "model": "somebody-else"}) + "\n" for row in rows[:40])
    )
    result = loop_json(other)
    expect(result["stages"]["regenerate"]["result"]["written_by"] == "target", "they are written anew by the target")
    run_folder = other / "loop/runs" / result["key"]
    index = json.loads((run_folder / "regenerated/index.json").read_text())
    trained = json.loads((run_folder / "distill/result.json").read_text())
    expect(
        index["written_by"] == "target"
        and trained["data"]["written_by"] == "target"
        and (other / "store/refs/candidate").exists(),
        "and learnt from",
    )
    named = new_loop("named")
    (named / "day-1.jsonl").write_text("".join(json.dumps({**row, "model": "target"}) + "\n" for row in rows))
    expect("regenerate" not in loop_json(named)["stages"], "the target's own answers, under its name, are not")

    # --- wrong settings are refused ---
    broken = new_loop("broken")
    text = (broken / "LOOP.toml").read_text()
    for wrong, right, says in (
        ("keep = 2", "keep = 0", "keep"),
        ('cooldown = "24h"', 'cooldown = "soon"', "cooldown"),
        ('regenerate = "auto"', 'regenerate = "no"', "regenerate"),
        ("keep = 2", "kept = 2", "kept"),
        ("floor = 0.01", 'floor = "0,6"', "[validate]: --floor"),
        ("floor = 0.01\nforce = true", "floor = 0.3", "--force"),
        ("max-steps = 40", 'time-limit = "half an hour"', "[distill]: --time-limit"),
        ("allow-failed = true", 'engines = "vlm"', "[package]: --engines"),
        ("keep = 2", 'draft = "prune:200"', "[loop] draft"),
    ):
        (broken / "LOOP.toml").write_text(text.replace(wrong, right))
        for more in ([], ["--plan"]):
            run("loop", "run", broken / "LOOP.toml", *more, code=2, last_line=["LOOP.toml", says])
    expect(not (broken / "loop").exists(), "wrong settings leave nothing behind")

    under_faults(Loop(), work)
finally:
    shutil.rmtree(work, ignore_errors=True)
