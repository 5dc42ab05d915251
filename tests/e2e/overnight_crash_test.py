"""Kills the monitor and `specdec package` (`kill -9`) in the course of one simulated night. A kill happens at every
change that these programs and the monitor's database make to the file system. The night has a drift alarm, a
redistillation, a candidate that is promoted and then alarms (relapse), and its roll-back. The test also runs the
night with faults of the file system and with power cuts.

After each fault, later checks must go through the same states to the same end. The training must have run once, each
alarm and each transition must have been reported, and the store must be valid at all times. Kills happen at every point
(numbered change), other faults and power cuts at a tenth of the points (SPECDEC_FAULTS=all: at all of them). A failure
names its point. `overnight_crash_test.py BUILD_DIR EIO 591` runs only the night with EIO at point 591, and `… CUT 300
some 12345` one night with a power cut."""

import http.server
import json
import os
import shutil
import socketserver
import sqlite3
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from faults import EDQUOT, EINTR, EIO, ENOSPC, FSYNC, KILL, LOSSES, PRELOAD, REPLAY, SHORT, number, some
from specdec_run import SPECDEC, expect, specdec
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-night-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))


class Admin(http.server.BaseHTTPRequestHandler):
    """Imitates the admin listeners of the servers of all nights, and receives the monitor's webhooks. The first part of
    a path names the simulated night."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # buffers a reply, so that head and body leave in one packet
    states, delivered, lock = {}, {}, threading.Lock()

    def reply(self, status, body):
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def state(self):
        return self.states.setdefault(
            self.path.split("/")[1],
            {"schema": "specdec.draft/1", "state": "none", "serving": {"name": "old", "id": "old"}, "candidate": None},
        )

    def do_GET(self):
        with self.lock:
            self.reply(200, self.state())

    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            if self.path.endswith("/hook"):
                self.delivered.setdefault(self.path.split("/")[1], {})[self.headers["X-Specdec-Delivery"]] = order[
                    "event"
                ]
                return self.reply(200, {})
            state = self.state()
            if order["action"] == "load":
                if state["candidate"]:
                    return self.reply(409, {"error": {"message": "one is on trial"}})
                manifest = json.loads((Path(order["draft"]) / "manifest.json").read_text())
                state["candidate"] = {"name": order["draft"], "id": manifest["draft"]["fingerprint"]["id"]}
                surely = {"value": 0.2, "ci": [0.1, 0.3]}
                state["paired"] = {
                    "conversations": 100,
                    "positions": 1000,
                    "difference": surely,
                    "candidate": {"value": 0.9, "ci": [0.8, 1.0]},
                    "serving": surely,
                }
            elif order["action"] == "promote":
                state["serving"], state["candidate"] = state["candidate"], None
            else:
                state["candidate"] = None
            self.reply(200, state)

    def log_message(self, *_):
        pass


class Listener(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 64


def must(condition, text):
    if not condition:
        print("FAILED:", text)
        shutil.rmtree(work, ignore_errors=True)
        os._exit(1)  # unlike sys.exit, ends the program from any thread


def ids(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    return manifest["draft"]["fingerprint"]["id"][:12], manifest["target"]["fingerprint"]["id"][:12]


def records(pair, overlap, n):
    row = {
        "schema": "specdec.acceptance/1",
        "t": 1795000000,
        "s": "",
        "T": 1,
        "q": pair[0],
        "p": pair[1],
        "n0": 0,
        "D": 40,
        "e": 60,
        "r": [40],
        "a": [int(40 * overlap)],
        "o": [int(40000 * overlap)],
    }
    return (json.dumps(row) + "\n") * n


def check(place, n, point=None, kind=KILL, journal=None):
    """Runs one `monitor check` and returns its exit code. With `point`, the fault `kind` happens at the change with the
    number `point`, if the check makes that many changes."""
    store = place / "store"
    env = dict(os.environ)
    if point is not None:
        env |= {
            "LD_PRELOAD": str(PRELOAD),
            "SPECDEC_FAULT_COUNTER": str(counter(place)),
            "SPECDEC_FAULT_BELOW": str(place),
            f"SPECDEC_{kind}_AT": str(point),
        }
        env |= {"SPECDEC_FAULT_JOURNAL": str(journal)} if journal else {}
    command = [
        str(SPECDEC),
        "monitor",
        "check",
        "--package",
        f"{store}:production",
        "--candidate",
        f"{store}:candidate",
        "--allow-failed",
        "--source",
        place / "acceptance.jsonl",
        "--state",
        place / "m.db",
        "--confirm",
        "alarm",
        "--min-fresh",
        "0",
        "--admin",
        f"{url}/{n}",
        "--webhook",
        f"{url}/{n}/hook",
        "--prom",
        place / "m.prom",
        "--redistil",
        f"sh {place}/train.sh",
        "--on-drift",
        f"echo $SPECDEC_ALARM_VERDICT >> {place}/alarms",
    ]
    with open(place / "said", "w") as said:  # a file, because a child that outlives its check would hold a pipe open
        done = subprocess.run(list(map(str, command)), stdout=said, stderr=said, env=env, timeout=120)
    text = (place / "said").read_text().strip()
    fine = done.returncode in (0, 3, 4, -9, 75) or (done.returncode == 74 and may_fail(kind, text))
    must(fine, f"point {n}: exit {done.returncode}: {text[-400:]}")
    return done.returncode


def may_fail(kind, text):
    """Returns whether a check that met the fault `kind` may fail. After an interrupted call (EINTR), it may fail only
    in SQLite, which does not repeat an interrupted fsync and reports an I/O error; the next check continues."""
    return text.endswith("m.db: disk I/O error") if kind == EINTR else kind not in (KILL, SHORT)


def counter(place):
    return place.with_suffix(".counter")


def counted(place):
    return struct.unpack("q", counter(place).read_bytes())[0]


def alone(place):
    """Waits until the children of a killed check have ended. A power cut would have ended them, too."""

    def others():
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(place).encode() in process.read_bytes():
                    return True
            except OSError:
                pass
        return False

    deadline = time.monotonic() + 30
    while others():
        must(time.monotonic() < deadline, f"{place.name}: a child goes on and on")
        time.sleep(0.02)


def power_cut(place, start, journal, lost, seed):
    alone(place)
    done = int(
        subprocess.run([REPLAY, journal, start, place], capture_output=True, text=True, check=True).stdout.split("\n")[
            0
        ]
    )
    # Keeps the file of acceptance records. The replay of the recorded file changes would write it anew, and the monitor
    # would read a new file from its beginning.
    log, aside = place / "acceptance.jsonl", place.with_suffix(".jsonl")
    log.rename(aside)
    subprocess.run([REPLAY, journal, start, place, str(done), lost, str(seed), place], check=True)
    aside.rename(log)


def lines(file):
    return file.read_text().split() if file.exists() else []


def valid(place, n):
    """Checks what readers of the store and of the database may rely on at any time."""
    for channel in ("production", "candidate"):
        ref = place / "store/refs" / channel
        if ref.exists():
            must(
                (place / "store/packages" / ("sha256-" + ref.read_text().strip()) / "manifest.json").exists(),
                f"point {n}: {channel} names no package",
            )
    if (place / "m.db").exists() and (place / "m.db").stat().st_size:
        copy = place / "copy.db"  # a copy of the database and its journal, as the next process finds them
        shutil.copy(place / "m.db", copy)
        if (place / "m.db-journal").exists():
            shutil.copy(place / "m.db-journal", place / "copy.db-journal")
        with sqlite3.connect(copy) as db:
            must(db.execute("PRAGMA integrity_check").fetchone()[0] == "ok", f"point {n}: the database")
        db.close()
        for left in place.glob("copy.db*"):
            left.unlink()


def night(n, point=None, kind=KILL, lost=None, seed=0):
    """Runs one night: three phases, each until its checks have nothing left to do. Without `point`, returns the number
    of points (changes of files). With `point`, returns whether the night ended before this point. With `lost`, the
    check is killed at the point and the power is cut: `lost` and the seed decide which unflushed data is lost."""
    place = work / f"night-{n}"
    start, journal = work / f"start-{n}", work / f"journal-{n}"
    shutil.copytree(work / "evening", place, symlinks=True)
    (place / "train.sh").write_text(
        f"echo $SPECDEC_ALARM_KEY >> {place}/trained\ncp {place}/candidate.ref "
        f"{place}/store/refs/candidate.new\nmv {place}/store/refs/candidate.new "
        f"{place}/store/refs/candidate\n"
    )
    counter(place).write_bytes(struct.pack("q", 0))
    killed = False
    for phase, text in enumerate((records(old, 0.5, 200), "", records(new, 0.02, 400))):
        with open(place / "acceptance.jsonl", "a") as log:
            log.write(text)
        if not killed:
            if lost:
                shutil.copytree(place, start, symlinks=True)
                journal.unlink(missing_ok=True)
            check(place, n, point, kind, journal if lost else None)
            killed = bool(point) and counted(place) >= point
            if lost and killed:
                power_cut(place, start, journal, lost, seed)
            shutil.rmtree(start, ignore_errors=True)
            if not killed:
                continue
            valid(place, n)
        for _ in range(4):  # after a kill of only a check's child, the next check starts it again
            if check(place, n) != 75 and not pending(place):
                break
        else:
            must(False, f"point {n}, phase {phase}: checks do not come to an end: {pending(place)}")
    check(place, n)
    verify(place, n)
    points = counted(place)
    journal.unlink(missing_ok=True)
    counter(place).unlink()
    shutil.rmtree(place)
    return not killed if point else points


def pending(place):
    with sqlite3.connect(place / "m.db") as db:
        rows = db.execute("SELECT kind, attempts, outcome FROM action WHERE ended = 0").fetchall()
    db.close()
    return rows


def way_of(place):
    with sqlite3.connect(place / "m.db") as db:
        rows = [
            f"{a} {e} {b}" for a, e, b in db.execute("SELECT from_state, event, to_state FROM transition ORDER BY id")
        ]
    db.close()
    return rows


WAY = [
    "HEALTHY alarm SUSPECT",
    "SUSPECT confirmed CONFIRMED",
    "CONFIRMED go REDISTILLING",
    "REDISTILLING candidate CANDIDATE",
    "CANDIDATE on_trial CANARY",
    "CANARY better HEALTHY",
    "HEALTHY relapse ROLLED_BACK",
]


def verify(place, n):
    must(way_of(place) == WAY, f"point {n}: the way {way_of(place)}")
    must(len(lines(place / "trained")) == 1, f"point {n}: trained {lines(place / 'trained')}")
    must(lines(place / "alarms") == ["drift", "drift"], f"point {n}: alarms {lines(place / 'alarms')}")
    must(
        sorted(Admin.delivered[str(n)].values()) == sorted(w.split()[1] for w in WAY),
        f"point {n}: webhooks {Admin.delivered[str(n)]}",
    )
    must(
        (place / "store/refs/production").read_text().strip() == old_digest,
        f"point {n}: production names the package before",
    )
    must(Admin.states[str(n)]["serving"]["id"][:12] == old[0], f"point {n}: and so does the server")
    must('specdec_state{state="ROLLED_BACK"} 1' in (place / "m.prom").read_text(), f"point {n}: the textfile")
    must(not list((place / "m.db.actions").glob("*.code")), f"point {n}: ends of children left over")
    # Checks the whole package, because promote reads every byte of it.
    specdec.package_promote("sha256-" + new_digest, store=place / "store", channel="audit", quiet=True)


def killed_while_training():
    """Kills a check while its child trains. The child must continue, no second child may start, and a later check must
    notice the child's end."""
    place = work / "night-long"
    shutil.copytree(work / "evening", place, symlinks=True)
    (place / "train.sh").write_text(
        f"echo begin >> {place}/trained\nwhile [ ! -e {place}/go ]; do sleep 0.02; done\ncp "
        f"{place}/candidate.ref {place}/store/refs/candidate\n"
    )
    (place / "acceptance.jsonl").write_text(records(old, 0.5, 200))
    killed = []

    def kill_once_it_trains():
        while not lines(place / "trained"):
            time.sleep(0.01)
        pid = int((place / "m.db.lock").read_text())
        os.kill(pid, 9)
        killed.append(pid)

    killer = threading.Thread(target=kill_once_it_trains)
    killer.start()
    expect(check(place, "long") == -9, "killed while its child trains")
    killer.join()
    expect(check(place, "long") == 75, "while the child is at work further checks wait")
    (place / "go").touch()
    deadline = time.monotonic() + 60
    while check(place, "long") == 75:
        must(time.monotonic() < deadline, "the child's end is never seen")
        time.sleep(0.05)
    expect(
        len(lines(place / "trained")) == 1 and "REDISTILLING candidate CANDIDATE" in way_of(place),
        f"trained once, and its package is taken: {way_of(place)}",
    )


def at_once(points, f):
    """Calls f(*arguments) for each entry of `points` in parallel threads. Returns the results in the order of
    `points`."""
    with ThreadPoolExecutor(2 * os.cpu_count()) as pool:
        return list(pool.map(lambda point: f(*point), points))


def nights():
    for kind in (KILL, EIO, ENOSPC, EDQUOT, FSYNC, SHORT, EINTR):
        total = night(f"count-{kind}", 0, kind)
        started = time.monotonic()
        points = list(range(1, total + 1)) if kind == KILL else some(total)
        reached = sum(at_once([(f"{kind}-{n}", n, kind) for n in points], lambda *point: not night(*point)))
        took = f"{time.monotonic() - started:.0f} s"
        expect(
            reached >= len(points) - 5 and (kind != KILL or total >= 200),
            f"{kind} at {reached} of {total} points, {took}",
        )
    started = time.monotonic()
    # The seeds are drawn before the threads start, because the order in which threads would draw is not reproducible.
    cuts = [(n, LOSSES[number() % 3], number()) for n in some(night("count-CUT", 0), 6)]
    at_once([(f"CUT-{n}-{lost}-{seed}", n, KILL, lost, seed) for n, lost, seed in cuts], night)
    expect(True, f"power cuts at {len(cuts)} changes, {time.monotonic() - started:.0f} s")


def one_night(kind, n, *lost_and_seed):
    never = night("-".join([kind, n, *lost_and_seed]), int(n), KILL if kind == "CUT" else kind, *lost_and_seed)
    expect(not never, f"{kind} at point {n}")


listener = Listener(("127.0.0.1", 0), Admin)
url = f"http://127.0.0.1:{listener.server_address[1]}"
threading.Thread(target=listener.serve_forever, daemon=True).start()
try:
    write_tiny_model(work / "target", layers=2, seed=1)
    shutil.copytree(work / "target", work / "old-draft")
    write_tiny_model(work / "new-draft", layers=1, seed=5)
    write_traffic(work / "log.jsonl", 60)
    specdec.data_ingest(work / "log.jsonl", target=work / "target", holdout=0.9, out=work / "data")
    evening = work / "evening"
    for draft, channel in (("old-draft", "production"), ("new-draft", "later")):
        pair = {"target": work / "target", "draft": work / draft}
        gate = {"parts": "acceptance,rollout", "contexts": "data", "k": 1, "threads": 1, "floor": 0.1, "force": True}
        specdec.validate(**pair, **gate, data=work / "data", out=work / f"gate-{draft}")
        report, store = work / f"gate-{draft}/report.json", evening / "store"
        specdec.package(**pair, report=report, store=store, channel=channel, allow_failed=True)
    old_digest, new_digest = ((evening / "store/refs" / name).read_text().strip() for name in ("production", "later"))
    old, new = (ids(evening / "store/packages" / ("sha256-" + digest)) for digest in (old_digest, new_digest))
    (evening / "store/refs/later").rename(evening / "candidate.ref")
    (evening / "store/refs/later.log").unlink()

    if sys.argv[2:]:
        one_night(*sys.argv[2:])
    else:
        nights()
        killed_while_training()
finally:
    listener.shutdown()
    shutil.rmtree(work, ignore_errors=True)
