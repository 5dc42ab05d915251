"""`specdec demo`: every check of the story holds and its report is there. Its gate measures speed: on a machine too busy for the
speed-up's interval to clear 1 the gate rightly says 4 or 6 and the story ends there, which is a visible skip here, not a failure."""
import json
import re
import sys
import tempfile
from pathlib import Path

from specdec_run import SKIP, expect, run

with tempfile.TemporaryDirectory() as folder:
    code, out, err = run("--json", "-q", "demo", "--out", Path(folder) / "demo", code=(0, 1, 3), timeout=1100)
    if code == 1 and re.search(r"specdec (package|-q) ended with exit code [46];", err):
        print("SKIPPED: the gate could not show a speed-up on this machine now:", err.strip().splitlines()[-1])
        sys.exit(SKIP)
    expect(code != 1, f"no stage failed ({err.strip()[-300:]})")
    result = json.loads(out)
    for check in result["checks"]:
        print("ok  " if check["holds"] else "FAIL", check["check"])
    for row in result["table"]:
        print(row)
    expect(code == 0 and result["verdict"] == "pass", "all checks hold")
    expect(len(result["checks"]) >= 10, "none is missing")
    expect(Path(result["report"]).exists(), "the report exists")
