"""`specdec demo`: every check of the story holds and its report is there. Its gate measures speed: on a machine too busy for the
speed-up's interval to clear 1 the gate rightly says 4 or 6, and a server that finds drafting not worth it gives the monitor nothing to judge.
Those checks are then a visible skip, all others must still hold."""
import json
import re
import sys
import tempfile
from pathlib import Path

from specdec_run import SKIP, expect, run

with tempfile.TemporaryDirectory() as folder:
    code, out, err = run("--json", "-q", "demo", "--out", Path(folder) / "demo", code=(0, 3), timeout=1100)
    result = json.loads(out)
    for check in result["checks"]:
        print("ok  " if check["holds"] else "FAIL", check["check"])
    for row in result["table"]:
        print(row)
    expect(len(result["checks"]) == 12, "none is missing")
    expect(Path(result["report"]).exists(), "the report exists")
    failed = [c["check"] for c in result["checks"] if not c["holds"]]
    expect((code == 0) == (not failed) and (result["verdict"] == "pass") == (not failed), "exit code and verdict say so")
    busy = [c for c in failed if re.search(r"verdict (inconclusive|not_worth_it)|validate failed|the new package fits|finds nothing wrong: inconclusive", c)]
    expect(len(busy) == len(failed), "no check failed but for the measured speed")
    if failed:
        print("SKIPPED: the gate could not show a speed-up on this machine now:", failed[0])
        sys.exit(SKIP)
