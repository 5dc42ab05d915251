"""Runs tests/bench/load.py against a server of a tiny model and returns its figures, which the tests of overload and
soak judge."""

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from specdec_run import BUILD, SOURCE, expect
from tiny_model import write_tiny_model


def run_load(what, layers, *flags):
    work = Path(tempfile.mkdtemp())
    for name, depth, seed in (("target", layers, 1), ("draft", 1, 2), ("other", 1, 3)):
        write_tiny_model(work / name, layers=depth, seed=seed, context=1024)
    rng = random.Random(4)
    (work / "texts").write_text(
        " ".join(rng.choice(["red", "green", "blue", "one", "two", "three"]) for _ in range(5000))
    )
    command = [
        sys.executable,
        SOURCE / "tests/bench/load.py",
        what,
        BUILD,
        "--target",
        work / "target",
        "--draft",
        work / "draft",
        "--other",
        work / "other",
        "--texts",
        work / "texts",
        "--out",
        work / "out.json",
        *flags,
    ]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    expect(done.returncode == 0, f"load.py ends well {done.stderr[-2000:]}")
    figures = json.loads((work / "out.json").read_text())
    print(json.dumps(figures, indent=1))
    return figures


def expect_flat(figures):
    """Checks that memory and descriptors do not grow and that no request remains open. Judges counts and ratios, not
    speeds."""
    resident, descriptors = figures["resident_mib"], figures["descriptors"]
    expect(resident["last third"] <= 1.1 * resident["second third"] + 8, f"memory is flat: {resident} MiB")
    expect(
        descriptors["end"] <= figures["idle_descriptors"] + 2,
        f"no descriptor is left open: {figures['idle_descriptors']} before, {descriptors}",
    )
    expect(
        figures["running"] == figures["waiting"] == figures["kv_cache_usage_perc"] == 0,
        "no sequence runs or waits, no cache block is held",
    )
    expect(figures["drained"], "and the server drains")
