"""Runs the real program under faults of the file system and after power cuts (tests/faults). A preloaded library counts
the program's changes to files. It makes one change fail, or records all of them. A point is the number of a change.
SPECDEC_FAULTS=all tests every point; otherwise a tenth of the points is drawn with the seed SPECDEC_FAULT_SEED, which
is printed. The default seed is 1, so that the same commit meets the same faults; the nightly run draws a fresh seed.
Kills always happen at every point."""

import os
import random
import shutil
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from specdec_run import BUILD, SPECDEC, expect

PRELOAD = BUILD / "tests/libspecdec_faults_preload.so"
REPLAY = BUILD / "tests/specdec_power_cut"
ALL = os.environ.get("SPECDEC_FAULTS") == "all"
SEED = int(os.environ.get("SPECDEC_FAULT_SEED") or 1)
chance = random.Random(SEED)
LOSSES = ("all", "contents", "some")  # the unsynced changes that a power cut loses (tests/faults/power_cut.h)
lock = threading.Lock()
print(f"faults: SPECDEC_FAULT_SEED={SEED}, {'all' if ALL else 'a tenth of the'} points", flush=True)

KILL, EIO, ENOSPC, EDQUOT, FSYNC, READ, SHORT, EINTR = KINDS = (
    "KILL",
    "EIO",
    "ENOSPC",
    "EDQUOT",
    "FSYNC",
    "READ",
    "SHORT",
    "EINTR",
)
OVERCOME = (SHORT, EINTR)  # the program must handle these without a message
REASONS = {
    EIO: "Input/output error",
    FSYNC: "Input/output error",
    READ: "Input/output error",
    ENOSPC: "No space left on device",
    EDQUOT: "Disk quota exceeded",
}


def environment(kind, n, below=None, word=None):
    """Returns environment variables that inject a fault at the n-th of the operations that `kind` counts (faults.cpp).
    With `word`, the fault applies only to processes that have `word` as an argument."""
    env = {"LD_PRELOAD": str(PRELOAD), f"SPECDEC_{kind}_AT": f"{n}@{word}" if word else str(n)}
    return env | ({"SPECDEC_FAULT_BELOW": str(below)} if below else {})


def attempt(arguments, kind, n, below=None, word=None, env=None):
    done = subprocess.run(
        [str(SPECDEC), *map(str, arguments)],
        capture_output=True,
        timeout=120,
        env={**os.environ, **(env or {}), **environment(kind, n, below, word)},
    )
    return done.returncode, done.stderr.decode(errors="replace").strip().splitlines()


def count(arguments, kind, scratch, below=None, word=None, env=None):
    """Runs the command without a fault and returns the number of operations (such as changes of files) that `kind`
    could make fail."""
    counter = scratch / f"counter-{kind}-{threading.get_ident()}"
    counter.write_bytes(bytes(8))
    attempt(arguments, kind, 0, below, word, {**(env or {}), "SPECDEC_FAULT_COUNTER": str(counter)})
    (n,) = struct.unpack("q", counter.read_bytes())
    counter.unlink()
    return n


def some(n, least=3):
    """Returns sorted numbers of file changes, 1 to n: all (SPECDEC_FAULTS=all) or a random tenth, at least `least`."""
    points = list(range(1, n + 1))
    if ALL:
        return points
    with lock:
        return sorted(chance.sample(points, min(n, max(least, (n + 9) // 10))))


def number():
    with lock:
        return chance.randrange(1 << 32)


class Recording:
    """A run of a command, with a recording of every change below `root`. restore() brings a folder to its state at any
    moment of the run."""

    def __init__(self, arguments, root, scratch, codes=(0,), env=None):
        self.root, self.start, self.journal = root, scratch / "start", scratch / "journal"
        scratch.mkdir()
        shutil.copytree(root, self.start, symlinks=True)
        done = subprocess.run(
            [str(SPECDEC), *map(str, arguments)],
            capture_output=True,
            timeout=300,
            env={
                **os.environ,
                **(env or {}),
                "LD_PRELOAD": str(PRELOAD),
                "SPECDEC_FAULT_JOURNAL": str(self.journal),
                "SPECDEC_FAULT_BELOW": str(root),
            },
        )
        if done.returncode not in codes:
            raise SystemExit(f"recorded: exit {done.returncode}: {done.stderr.decode()[-2000:]}")
        listed = subprocess.run([REPLAY, self.journal, self.start, root], capture_output=True, text=True)
        if listed.returncode != 0:
            raise SystemExit(listed.stderr)
        self.names = listed.stdout.splitlines()[1:]

    def restore(self, n, lost, seed, out):
        subprocess.run([REPLAY, self.journal, self.start, self.root, str(n), lost, str(seed), out], check=True)
        last = self.names[n - 1] if n else "nothing"
        return f"power cut after change {n} of {len(self.names)} ({last}), lost {lost}, seed {seed}"


class Subject:
    """A command under test, with checks that must hold after a fault. prepare() makes a folder with everything that the
    command changes. The command works in the same way in any such folder."""

    name = ""
    codes = (0,)  # exit codes of an undisturbed run
    reads_below = None  # a folder in which reads fail, instead of the command's own folder
    # A fault strikes one numbered change of a file (point). finish() runs after the faults whose number is a multiple
    # of `often`, and after every kill and every power cut.
    often = 1
    word = None  # faults strike only processes with this argument; power cuts affect all
    least = 3  # for each kind of fault, at least this many changes of files are made to fail

    def environment(self, folder):
        return {}

    def prepare(self, folder):
        raise NotImplementedError

    def command(self, folder):
        raise NotImplementedError

    def check(self, folder, text):
        """Checks what readers may rely on at any time, even directly after a fault."""

    def done(self, folder, text):
        """Checks that the results that the command reported as done are there, whether or not there was a power cut."""

    def finish(self, folder, text):
        """Checks that the same command succeeds when it is run again."""


def must(condition, text):
    if not condition:
        print("FAILED:", text, flush=True)
        os._exit(1)  # unlike sys.exit, ends the program from any thread


def meet(subject, work, kind, n):
    folder = work / f"{subject.name}-{kind}-{n}"
    folder.mkdir()
    subject.prepare(folder)
    below = subject.reads_below if kind == READ and subject.reads_below else folder
    struck = work / f"{folder.name}.struck"
    code, lines = attempt(
        subject.command(folder),
        kind,
        n,
        below,
        subject.word,
        {**subject.environment(folder), "SPECDEC_FAULT_MET": str(struck)},
    )
    text = (
        f"{subject.name}, SPECDEC_{kind}_AT={n} ({struck.read_text() if struck.exists() else 'not met'}): exit {code}"
    )
    struck.unlink(missing_ok=True)
    errors = [line for line in lines if line.startswith("specdec: error:")]
    if kind == KILL:
        must(code == -9 or code in subject.codes, f"{text}: {lines}")
    elif kind in OVERCOME:
        must(code in subject.codes, f"{text}: {lines}")
    elif code not in subject.codes:
        must(code == 74, f"{text}: {lines}")
        must(
            len(errors) == 1 and errors[0] == lines[-1] and str(below) in errors[0] and REASONS[kind] in errors[0],
            f"{text}: the last line names the file and the reason: {lines}",
        )
    subject.check(folder, text)
    if code in subject.codes:
        subject.done(folder, text)
    if kind == KILL or n % subject.often == 0:
        subject.finish(folder, text)
    shutil.rmtree(folder)


def record(subject, work, worker):
    folder = work / f"{subject.name}-recorded-{worker}"
    folder.mkdir()
    subject.prepare(folder)
    scratch = work / f"{subject.name}-recording-{worker}"
    return Recording(subject.command(folder), folder, scratch, subject.codes, subject.environment(folder))


def planned_cuts(points, recording):
    """Returns power cuts after the changes `points` and after the last one, as (change, what is lost, random seed)."""
    last = len(recording.names)
    return [
        (n, lost, number())
        for n in sorted({*points, last})
        for lost in (LOSSES if ALL or n == last else (LOSSES[number() % 3],))
    ]


def cut(subject, recording, n, lost, seed):
    folder = recording.root  # the folder of the recorded run, because the files contain its path
    text = f"{subject.name}, {recording.restore(n, lost, seed, folder)}"
    subject.check(folder, text)
    if n == len(recording.names):
        subject.done(folder, text)
    subject.finish(folder, text)


def under_faults(subject, work, kinds=KINDS):
    started = time.monotonic()
    met = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for kind in kinds:
            folder = work / f"{subject.name}-count"
            folder.mkdir()
            subject.prepare(folder)
            n = count(
                subject.command(folder),
                kind,
                work,
                subject.reads_below if kind == READ and subject.reads_below else folder,
                subject.word,
                subject.environment(folder),
            )
            shutil.rmtree(folder)
            points = list(range(1, n + 1)) if kind == KILL else some(n, subject.least)
            list(pool.map(lambda point, kind=kind: meet(subject, work, kind, point), points))
            met[kind] = f"{len(points)} of {n}"
        # Recorded files contain the path of the folder, so workers cannot share a recording.
        recordings = list(pool.map(lambda worker: record(subject, work, worker), range(os.cpu_count())))
        points = some(min(len(recording.names) for recording in recordings), 2 * subject.least)
        cuts = [planned_cuts(points[i :: len(recordings)], recording) for i, recording in enumerate(recordings)]
        list(pool.map(lambda recording, mine: [cut(subject, recording, *one) for one in mine], recordings, cuts))
        for recording in recordings:
            shutil.rmtree(recording.root)
            shutil.rmtree(recording.journal.parent)
        moments = {n for mine in cuts for n, _, _ in mine}
        met["power cut"] = f"{sum(map(len, cuts))} at {len(moments)} of {max(len(r.names) for r in recordings)}"
    expect(True, f"{subject.name} under faults: {met}, {time.monotonic() - started:.0f} s")
    return met
