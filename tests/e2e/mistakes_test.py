"""Makes about a hundred mistakes: paths that are missing, of the wrong kind, empty or in use, files of another kind or
version, and numbers out of range. The same mistake must give the same exit code in every command. With --json the
failure must be one object on stdout, in addition to the last line on stderr. Nothing may be left behind."""

import concurrent.futures
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from specdec_run import SOURCE, SPECDEC, expect, run

MODEL = SOURCE / "cli/demo/assets/target"
KINDS = {2: {"usage", "config"}, 7: {"data", "model"}, 74: {"io"}, 75: {"network"}, 8: {"device"}}
work = Path(tempfile.mkdtemp(prefix="specdec-mistakes-"))
os.chdir(work)


def make_files():
    row = json.dumps({"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]})
    Path("log.jsonl").write_text("\n".join(row.replace("hello", word) for word in ("hello", "again", "more")) + "\n")
    run("data", "ingest", "log.jsonl", "--target", MODEL, "--out", "data", "--holdout", "0.5", "--salt", "salt")
    for folder in ("dir", "logs", "badindex", "index99", "broken"):
        Path(folder).mkdir()
    for name, text in {
        "file": "not json\n",
        "empty": "",
        "empty.jsonl": "",
        "bad.json": "{nope",
        "v99.json": '{"schema":"specdec.validate/99"}',
        "list.json": "[]",
        "logs/day-1.jsonl": row + "\n",
        "badindex/index.json": "{nope",
        "index99/index.json": '{"schema":"specdec.data/99"}',
        "bad.toml": "= nope",
        "unknown.toml": "nonsense = 1\n",
        "nologs.toml": f'[loop]\ntarget="{MODEL}"\nlogs=["none/*.jsonl"]\nwork="w"\nstore="s"\n',
    }.items():
        Path(name).write_text(text)
    for file in MODEL.iterdir():
        shutil.copyfile(file, Path("broken") / file.name)
    os.truncate("broken/model.safetensors", 4096)


def models():
    """Yields (command, exit code, text of the error) for each command that takes a MODEL, with each kind of wrong
    MODEL."""
    generate = ["generate", "--prompt", "a", "--max-tokens", "1"]
    pair = ["--data", "data", "--out", "o"]
    for start in (
        [*generate, "--target"],
        [*generate, "--target", MODEL, "--draft"],
        ["serve", "--target"],
        ["serve", "--target", MODEL, "--draft"],
        ["data", "ingest", "log.jsonl", "--out", "o", "--target"],
        ["data", "audit", "data", "--target"],
        ["data", "regenerate", "data", "--out", "o", "--target"],
        ["distill", *pair, "--draft", "prune:1", "--target"],
        ["validate", *pair, "--draft", MODEL, "--target"],
        ["validate", *pair, "--target", MODEL, "--draft"],
        ["validate", *pair, "--target", MODEL, "--draft", MODEL, "--against"],
        ["bench", *pair, "--draft", MODEL, "--target"],
        ["package", "--target", MODEL, "--report", "v99.json", "--store", "o", "--draft"],
        ["package", "quantise", "--format", "fp8", "--out", "o", "--draft"],
        ["package", "lint", "--target", MODEL, "--draft"],
        ["export", "--gguf", "o.gguf"],
        ["fetch"],
    ):
        yield [*start, "none"], 7, "none"
        yield [*start, "file"], 7, "found a file"
        yield [*start, "dir"], 7, "no config.json"
        yield [*start, ""], 2, "empty"
        yield [*start, "ftp://u:secret@x/"], 2, "found a URL (ftp://…)"
    distill = ["distill", "--target", MODEL, "--data", "data", "--out", "o", "--draft"]
    yield [*distill, "model:none"], 7, "none"
    yield [*distill, "model:broken"], 7, "model.safetensors"
    yield [*distill, "config:none"], 7, "none"
    yield [*distill, "config:bad.json"], 7, "bad.json"


def data_and_reports():
    for start, end in (
        (["data", "stats"], []),
        (["data", "audit"], []),
        (["data", "regenerate"], ["--target", MODEL, "--out", "o"]),
        (["distill", "--target", MODEL, "--draft", "prune:1", "--out", "o", "--data"], []),
        (["validate", "--target", MODEL, "--draft", MODEL, "--out", "o", "--data"], []),
        (["bench", "--target", MODEL, "--draft", MODEL, "--out", "o", "--data"], []),
    ):
        yield [*start, "none", *end], 7, "none: expected a directory that specdec data ingest wrote, found nothing"
        yield [*start, "file", *end], 7, "found a file"
        yield [*start, "dir", *end], 7, "found one without index.json"
        yield [*start, "badindex", *end], 7, "badindex/index.json"
        yield [*start, "index99", *end], 7, 'found "specdec.data/99"'
        yield [*start, "", *end], 2, "found an empty name"
    for start in (
        ["package", "--target", MODEL, "--draft", MODEL, "--store", "o", "--report"],
        ["validate", "--target", MODEL, "--draft", MODEL, "--data", "data", "--out", "o", "--baseline"],
    ):
        yield [*start, "none"], 7, "none"
        yield [*start, "dir"], 7, "found a directory"
        yield [*start, "bad.json"], 7, "bad.json"
        yield [*start, "v99.json"], 7, "specdec.validate/99"
        yield [*start, "list.json"], 7, "list.json"
        yield [*start, ""], 2, "--" + start[-1].lstrip("-")
    for source in ("none", "dir", "empty.jsonl", "none/*.jsonl"):
        yield ["data", "ingest", source, "--target", MODEL, "--out", "o"], 7, source
    for package in ("none", "dir", "file", "none:production"):
        yield ["package", "verify", package], 7, package
        yield ["serve", package], 7, package
        yield ["monitor", "baseline", "--package", package, "--source", "log.jsonl", "--out", "o"], 7, package
    for store in ("none", "dir", "file"):
        yield ["package", "list", "--store", store], 7, "not a store"
        yield ["package", "rollback", "--store", store, "--channel", "c"], 7, "not a store"
    for state in ("none", "dir", "file"):
        yield ["monitor", "status", "--state", state], 7, state


def output_directories():
    """Yields (command, exit code, text of the error) for output folders that contain other files, lie below a file, or
    have an empty name."""
    for start in (
        ["validate", "--target", MODEL, "--draft", MODEL, "--data", "data", "--out"],
        ["bench", "--target", MODEL, "--draft", MODEL, "--data", "data", "--out"],
        ["distill", "--target", MODEL, "--data", "data", "--draft", "prune:1", "--out"],
        ["data", "ingest", "log.jsonl", "--target", MODEL, "--out"],
        ["data", "regenerate", "data", "--target", MODEL, "--out"],
        ["package", "quantise", "--draft", MODEL, "--format", "fp8", "--out"],
        ["package", "--target", MODEL, "--draft", MODEL, "--report", "v99.json", "--store"],
        ["package", "pull", "none:c", "--store"],
        ["demo", "--out"],
    ):
        yield [*start, "logs"], 2, "logs: has day-1.jsonl"
        yield [*start, "file"], 2, "is no directory"
        yield [*start, "file/below"], 2, "is no directory"
        yield [*start, ""], 2, start[-1]
    yield ["init", "file"], 2, "is no directory"
    yield ["serve", "--target", MODEL, "--port", "0", "--record", "file"], 2, "is no directory"


def settings_and_numbers():
    for start in (
        ["loop", "run"],
        ["data", "regenerate", "data", "--target", "http://127.0.0.1:1", "--out", "o", "--api-key-file"],
        ["serve", "--target", MODEL, "--port", "0", "--api-key-file"],
    ):
        yield [*start, "none"], 2, "none"
        yield [*start, "dir"], 2, "found a directory"
        yield [*start, "empty"], 2, "empty"
        yield [*start, ""], 2, "found an empty name"
    for file in ("none", "dir", "bad.toml", "unknown.toml"):
        yield ["--config", file, "doctor"], 2, file
    yield ["loop", "run", "nologs.toml"], 7, "no such log"
    generate = ["generate", "--target", MODEL, "--prompt", "a"]
    ingest = ["data", "ingest", "log.jsonl", "--target", MODEL, "--out", "o"]
    validate = ["validate", "--target", MODEL, "--draft", MODEL, "--data", "data", "--out", "o"]
    distill = ["distill", "--target", MODEL, "--data", "data", "--out", "o", "--draft", "prune:1"]
    for start, flags in (
        (generate, ("--max-tokens", "--temperature", "--top-k", "--top-p", "--threads", "--k")),
        (ingest, ("--holdout", "--max-length", "--limit", "--skip", "--min-chars", "--tenant-cap")),
        (validate, ("--floor", "--goal", "--max-requests", "--speed-tokens", "--rollout-requests")),
        (distill, ("--lr", "--batch-tokens", "--max-steps", "--temperature")),
        (["serve", "--target", MODEL], ("--port", "--max-batch", "--drain-seconds")),
        (["init", "i"], ("--requests-per-day",)),
    ):
        for flag in flags:
            yield [*start, flag, "-1"], 2, "-1" if start is not distill else "expected"
            yield [*start, flag, "x"], 2, f"{flag}: expected a number"
    for value in ("-1", "x"):
        yield ["demo", "--conversations", value], 2, "--conversations: expected a number"
    for start in (generate, validate, ["serve", "--target", MODEL]):
        yield [*start, "--device", "cuda:99"], 8, "CUDA"
    yield ["serve", "--target", MODEL, "--port", str(taken.getsockname()[1])], 74, "Address already in use"


def answer_to(arguments):
    done = subprocess.run(
        [SPECDEC, "--json", *map(str, arguments)], capture_output=True, timeout=300, env={**os.environ, **OFFLINE}
    )
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


def problem_of(arguments, code, text):
    got, out, err = answer_to(arguments)
    last = (err.strip().splitlines() or [""])[-1]
    if got != code or text not in last:
        return f"exit {got}, expected {code} and {text!r} in: {last}"
    if "secret" in out + err:
        return f"shows a secret: {out}{err}"
    try:
        said = json.loads(out)
    except ValueError:
        return f"not one JSON object on stdout: {out!r}"
    if said["schema"] != "specdec.error/1" or said["exit_code"] != code or said["kind"] not in KINDS[code]:
        return f"another error on stdout: {out}"
    if last != "specdec: error: " + said["message"]:
        return f"stdout and stderr differ: {said['message']!r}, {last!r}"
    words = said["command"].split()
    return "" if words and set(words) <= set(map(str, arguments)) else f"command: {out}"


def check_mistakes():
    rows = [*models(), *data_and_reports(), *output_directories(), *settings_and_numbers()]
    before = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        problems = list(pool.map(lambda row: problem_of(*row), rows))
    wrong = [f"{' '.join(map(str, row[0]))}: {problem}" for row, problem in zip(rows, problems) if problem]
    after = {path: path.stat().st_mtime_ns for path in work.rglob("*")}
    expect(
        not wrong,
        f"{len(rows)} mistakes: exit code, line and JSON object" + "".join("\n  " + line for line in wrong),
    )
    expect(after == before, f"nothing is left behind: {sorted(set(after) ^ set(before))}")


def check_earlier_results():
    ingest = ["data", "ingest", "log.jsonl", "--target", MODEL, "--holdout", "0.5", "--salt", "salt", "--out"]
    Path("empty-dir").mkdir()
    run(*ingest, "empty-dir")
    run(*ingest, "empty-dir")
    print("ok: an empty directory is taken, and an earlier result is replaced")
    quantise = ["package", "quantise", "--draft", MODEL, "--format", "fp8", "--out", "fp8"]
    Path("fp8").mkdir()
    run(*quantise)
    run(*quantise, code=2, last_line=("fp8: has", "give a new or an empty directory"))
    Path("gate").mkdir()
    Path("gate/report.json").write_text('{"schema": "specdec.bench/1"}')
    validate = ["validate", "--target", MODEL, "--draft", MODEL, "--data", "none", "--out", "gate"]
    run(*validate, code=2, last_line=("gate: has report.json and no result of specdec validate",))
    Path("gate/report.json").write_text('{"schema": "specdec.validate/1"}')
    run(*validate, code=7, last_line=("none",))
    print("ok: the result file decides")


def json_lines(err):
    lines = [json.loads(line) for line in err.splitlines()]
    assert all({"time", "level", "message"} <= line.keys() for line in lines), err
    return lines


def check_log_lines():
    """Checks that --log-format json makes every line on stderr JSON: notes, progress, the memory plan and errors."""
    logs = ["--log-format", "json"]
    _, out, err = run(*logs, "generate", "--target", MODEL, "--prompt", "a", "--max-tokens", 2)
    lines = json_lines(err)
    expect(any(" + workspace " in line["message"] for line in lines), f"the memory plan is a JSON line: {err}")
    _, _, err = run(*logs, "data", "ingest", "log.jsonl", "--target", MODEL, "--out", "lines", "--salt", "salt")
    progress = [line["progress"] for line in json_lines(err) if "progress" in line]
    expect(
        [p["stage"] for p in progress if p["done"] == p["total"]] == ["ingest", "write shards"],
        f"each stage ends with one line: {progress}",
    )
    _, out, err = run(*logs, "--json", "data", "stats", "none", code=7)
    last = json_lines(err)[-1]
    expect(
        last["level"] == "error"
        and last["kind"] == "data"
        and last["exit_code"] == 7
        and json.loads(out)["message"] == last["message"],
        f"the error is a JSON line: {last}",
    )
    for bad in ("--no-such-flag", "--max-tokens=x"):
        _, _, err = run(*logs, "generate", bad, code=2)
        expect(json_lines(err)[-1]["command"] == "generate", "so is a mistake in the command line")
    environment = {"SPECDEC_LOG_FORMAT": "json", "SPECDEC_JSON": "1"}
    _, out, err = run("data", "stats", "none", code=7, env=environment)
    expect(json.loads(out)["schema"] == "specdec.error/1" and json_lines(err), "the environment asks for both, too")


def check_dead_endpoint():
    """Checks that `data regenerate` first prints where it connects, and then why each attempt failed and when the next
    one follows."""
    port = free_port()
    started = time.monotonic()
    child = subprocess.Popen(
        [SPECDEC, "data", "regenerate", "data", "--target", f"http://127.0.0.1:{port}", "--out", "o"],
        stderr=subprocess.PIPE,
        text=True,
    )
    lines = list(child.stderr)
    expect(child.wait() == 75 and not Path("o").exists(), f"exit 75 after {time.monotonic() - started:.0f} s")
    expect(f"connecting to http://127.0.0.1:{port}/v1" in lines[0], f"it says where it connects: {lines[0]}")
    waits = [line for line in lines if "next attempt in" in line]
    expect(
        len(waits) == 5 and "attempt 1 of 6" in waits[0] and "in 0.5 s" in waits[0] and "in 8 s" in waits[-1],
        f"and why and when it tries again: {waits}",
    )
    expect("(6 attempts)" in lines[-1], f"and when it gives up: {lines[-1]}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(work / "no-hub")}
taken = socket.socket()
taken.bind(("127.0.0.1", 0))
taken.listen()
make_files()
check_earlier_results()
check_mistakes()
check_log_lines()
check_dead_endpoint()
os.chdir("/")
shutil.rmtree(work)
