#!/usr/bin/env python3
"""run_test.py BUILD_DIR: tests run.py without a GPU, with programs that only pretend to have one. Each part of run.py
fails, hangs and aborts in turn. The output file must always be valid JSON and have the results of the other parts."""

import importlib.util
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUN = Path(__file__).resolve().with_name("run.py")
PEERS = RUN.with_name("peers.py")
BUILD = Path(sys.argv[1]).resolve()

# Stands in for the program of each part. PRETEND is "PART WAY"; PART is a word of the part's command.
PRETENDER = """#!/usr/bin/env python3
import json, os, signal, subprocess, sys, time
words, report = " ".join(sys.argv), os.environ.get("SPECDEC_GPU_REPORT")
if "--tool" in words and "--error-exitcode" not in words: sys.exit("compute-sanitizer without an exit code")
memory = os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING")
if ("memcheck" in words) != (memory == "1"): sys.exit("memcheck sees no errors in LibTorch's own blocks")
part, _, way = os.environ.get("PRETEND", "none fails").partition(" ")
apart = os.environ.get("SPECDEC_CUDA_OVERLAP") == "0"  # this part runs what others run, too
mine = part == "all" or (part == "apart" if apart else part in words)
def write(found):
    if report:
        open(report + ".next", "w").write(found)
        os.replace(report + ".next", report)
found = {"device": {"name": "a GPU"}, "tests": [], "running": "A.Test", "figures": {"before": {"x": 1}}}
write(json.dumps(found))
print("it begins", flush=True)
if mine and way == "hangs":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("PRETEND_PIDS"): open(os.environ["PRETEND_PIDS"], "a").write(f"{os.getpid()}\\n")
    subprocess.run(["sleep", "1000"])
if mine and way == "aborts": os.abort()
if mine and way == "dies": os.kill(os.getpid(), signal.SIGKILL)
if mine and way == "writes_rubbish": write("{"), sys.exit(1)
failed = mine and way == "fails"
found["tests"] = [{"name": "A.Test", "passed": not failed, "seconds": 1.5, "failures": ["1 is not 2"] * failed}]
found["figures"]["after"], found["running"] = {"y": 2}, None
write(json.dumps(found))
if "doctor" in words:
    fault = [{"kernel": "rope"}] if mine and way == "finds_a_fault" else []
    print(json.dumps({"schema": "specdec.doctor/1", "gpus": [{"name": "a GPU", "faults": fault}]}))
if "bench" in words:
    folder = sys.argv[sys.argv.index("--out") + 1]
    os.makedirs(folder)
    open(folder + "/bench.json", "w").write(json.dumps({"schema": "specdec.bench/1", "rows": [{"speedup": 1.5}]}))
if "--csv" in words:
    if mine and way == "may_not": print("==ERROR== ERR_NVGPUCTRPERM - no permission")
    else:
        with open(sys.argv[sys.argv.index("--log-file") + 1], "w") as log:
            print("==PROF== Connected", file=log)
            print('"ID","Kernel Name","Grid Size","Metric Name","Metric Unit","Metric Value"', file=log)
            print('"0","rows_linear<1>","(1,1,1)","DRAM Throughput","%","88.5"', file=log)
            print("==PROF== Disconnected", file=log)
if "--tool" in words: print("========= ERROR SUMMARY: 0 errors")
sys.exit(1 if failed else 0)
"""


def expect(condition, text):
    if not condition:
        print("FAILED", text)
        sys.exit(1)
    print("ok", text.splitlines()[0][:110])


def write_program(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(file.stat().st_mode | stat.S_IXUSR)


def start(tree, out, *flags, **variables):
    return subprocess.Popen(
        [sys.executable, tree / "share/specdec/gpu/run.py", "--out", out, *flags],
        env={**os.environ, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(tree, out, *flags, **variables):
    process = start(tree, out, *flags, **variables)
    printed, _ = process.communicate(timeout=280)
    return process.returncode, printed


def statuses(out):
    return {name: part["status"] for name, part in json.loads(out.read_text())["parts"].items()}


def other_than(parts, name):
    missing = {"assisted": "left out"} if not importlib.util.find_spec("transformers") else {}
    return {
        other: status for other, status in parts.items() if other != name and status != missing.get(other, "passed")
    }


def test_without_gpu(work):
    words = [sys.executable, RUN, "--tree", BUILD, "--out", work / "none.json", "--first"]
    done = subprocess.run(words, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True)
    code, printed = done.returncode, done.stdout + done.stderr
    expect(code == 77, f"without a GPU it ends with 77: {code} {printed[-500:]}")
    expect("SKIPPED: " in printed.splitlines()[-1], f"and says why: {printed.strip()}")
    expect(not (work / "none.json").exists(), "and leaves no file")


def test_all_passes(tree, work, tools):
    code, printed = run(tree, work / "a.json", **tools)
    found = json.loads((work / "a.json").read_text())
    expect(code == 0 and found["verdict"] == "pass", f"all passed: {code}\n{printed}")
    expect(found["machine"]["name"] == "a GPU" and found["machine"]["torch"], "the machine, once")
    parts = found["parts"]
    expect(list(parts)[:5] == ["device", "doctor", "graphs", "rounds", "steps"], "what decides comes first")
    expect(parts["rounds"]["figures"] == {"before": {"x": 1}, "after": {"y": 2}}, "figures")
    expect(parts["answers"]["tests"][0]["seconds"] == 1.5, "tests")
    expect(parts["ncu"]["launches"][0]["metrics"] == {"DRAM Throughput": "88.5 %"}, "ncu's metrics")
    expect(parts["pair"]["found"]["rows"] == [{"speedup": 1.5}], "the carried pair")
    for call, others in (("--first", {"answers", "twins", "pair"}), ("--second", {"doctor", "ncu", "memcheck"})):
        run(tree, work / "call.json", call, **tools)
        expect(not others & set(statuses(work / "call.json")), f"{call} has its own parts")


# Maps the name of each part to a word that only its command line contains.
PARTS = {
    "doctor": "doctor",
    "graphs": "Graphs",
    "rounds": "Speed.Rounds",
    "steps": "Speed.Steps",
    "apart": "apart",
    "kernels": "=Speed.Products",
    "compiled": "compiled",
    "head": "AHead",
    "ncu": "--csv",
    "memcheck": "memcheck",
    "racecheck": "racecheck",
    "synccheck": "synccheck",
    "answers": "=Answers.*",
    "pair": "bench",
    "passes": "Passes",
}


def test_each_part_in_turn(tree, work, tools):
    out = work / "b.json"
    for name, word in PARTS.items():
        code, printed = run(tree, out, PRETEND=f"{word} dies", **tools)
        parts = statuses(out)
        expect(code == 1 and parts[name] == "failed", f"{name} is killed: {code}, {parts[name]}\n{printed}")
        expect(not other_than(parts, name), f"and costs itself alone: {other_than(parts, name)}")
        figures = json.loads(out.read_text())["parts"][name].get("figures")
        expect(figures == {"before": {"x": 1}}, f"what it had found is there: {figures}")


def test_ways_to_end(tree, work, tools):
    for name, way in (("rounds", "fails"), ("graphs", "aborts"), ("steps", "writes_rubbish")):
        code, printed = run(tree, work / "c.json", PRETEND=f"{PARTS[name]} {way}", **tools)
        part = json.loads((work / "c.json").read_text())["parts"][name]
        expect(code == 1 and part["status"] == "failed", f"{name} {way}: {code}, {part}\n{printed}")
        expect(way != "fails" or part["tests"][0]["failures"] == ["1 is not 2"], "and the failures are there")
        expect(part["printed"] == ["it begins"], f"and what it printed: {part['printed']}")
        expect(not other_than(statuses(work / "c.json"), name), "and costs itself alone")


def test_hangs(tree, work, tools):
    """Tests parts that hang: they ignore SIGTERM and have started another process."""
    for name in ("doctor", "rounds", "ncu", "memcheck"):
        out, pids = work / f"{name}.json", work / f"{name}.pids"
        variables = {"PRETEND": f"{PARTS[name]} hangs", "PRETEND_PIDS": str(pids), **tools}
        code, _ = run(tree, out, "--limit", f"{name}=4", **variables)
        part = json.loads(out.read_text())["parts"][name]
        expect(code == 1 and part["status"] == "over its limit", f"{name} hangs: {code}, {part['status']}")
        expect(part["figures"] == {"before": {"x": 1}}, "what it had found is there")
        expect(not other_than(statuses(out), name), "and it costs itself alone")
        alive = [pid for pid in pids.read_text().split() if Path(f"/proc/{pid}").exists()]
        expect(not alive, f"and nothing of it is left: {alive}")
    code, _ = run(tree, work / "all.json", "--second", "--within", "15", PRETEND="all hangs", **tools)
    parts = statuses(work / "all.json")
    expect(code == 1 and parts.pop("device") == "over its limit", f"all hang: {code}")
    expect(set(parts.values()) == {"left out"}, f"and no time is left for the others: {parts}")
    code, printed = run(tree, work / "no.json", "--limit", "round=4", **tools)
    expect(code == 2 and "rounds" in printed, f"a part that does not exist: {code} {printed[-300:]}")


def test_what_may_be_missing(tree, work, tools):
    _, printed = run(tree, work / "e.json", PRETEND="--csv may_not", **tools)
    ncu = json.loads((work / "e.json").read_text())["parts"]["ncu"]
    expect(ncu["status"] == "left out" and "counters" in ncu["why"], f"counters that nobody may read: {ncu} {printed}")
    code, _ = run(tree, work / "e.json")
    why = json.loads((work / "e.json").read_text())["parts"]["memcheck"]["why"]
    expect(code == 0 and "not installed" in why, f"no sanitizer: {code}, {why}")
    code, _ = run(tree, work / "e.json", PRETEND="doctor finds_a_fault", **tools)
    expect(code == 1 and statuses(work / "e.json")["doctor"] == "failed", "a fault that doctor finds")


def wait_for(out, name, process):
    """Waits until the running part of run.py has written figures. Returns how often the output file was read meanwhile.
    Fails if it was ever invalid JSON."""
    reads = 0
    while process.poll() is None:
        if out.exists():
            parts = json.loads(out.read_text())["parts"]
            reads += 1
            if parts.get(name, {}).get("figures"):
                return reads
        time.sleep(0.01)
    return 0


def test_stopped(tree, work, tools):
    for sign, status in ((signal.SIGTERM, "stopped"), (signal.SIGKILL, "running")):
        out, pids = work / f"{status}.json", work / f"{status}.pids"
        process = start(tree, out, PRETEND="Speed.Steps hangs", PRETEND_PIDS=str(pids), **tools)
        reads = wait_for(out, "steps", process)
        process.send_signal(sign)
        process.communicate(timeout=60)
        parts = statuses(out)
        expect(reads > 1 and parts["steps"] == status, f"{sign.name} while steps ran: {parts}, read {reads} times")
        expect(parts["doctor"] == parts["rounds"] == "passed", "what came before is there")
        for pid in pids.read_text().split():  # still there if run.py itself was killed
            if Path(f"/proc/{pid}").exists():
                os.killpg(int(pid), signal.SIGKILL)


def test_peers(work):
    for peer in ("compiled", "assisted"):
        if peer == "assisted" and not importlib.util.find_spec("transformers"):
            print("SKIPPED: assisted, since transformers is not installed here")
            continue
        out = work / f"{peer}.json"
        done = subprocess.run([sys.executable, PEERS, peer, "--toy", "--out", out], capture_output=True, text=True)
        expect(done.returncode == 0, f"{peer}: {done.stderr[-1000:]}")
        expect(json.loads(out.read_text())["figures"][peer], f"{peer} has figures")


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    tree, tools = work / "tree", work / "tools"
    scripts = tree / "share/specdec/gpu"
    for program in ("libexec/gpu_test", "bin/specdec", "share/specdec/gpu/peers.py"):
        write_program(tree / program, PRETENDER)
    for program in ("compute-sanitizer", "ncu"):
        write_program(tools / program, PRETENDER)
    shutil.copy(RUN, scripts)
    (tree / "share/specdec/pair").mkdir(parents=True)
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    test_without_gpu(work)
    test_all_passes(tree, work, path)
    test_each_part_in_turn(tree, work, path)
    test_ways_to_end(tree, work, path)
    test_hangs(tree, work, path)
    test_what_may_be_missing(tree, work, path)
    test_stopped(tree, work, path)
    test_peers(work)
