"""`specdec demo`: every check of the story holds, within its ten minutes, and its report is there."""
import tempfile
from pathlib import Path

from specdec_run import expect, run_json

with tempfile.TemporaryDirectory() as folder:
    code, result = run_json("-q", "demo", "--out", Path(folder) / "demo", code=(0, 3), timeout=1100)
    for check in result["checks"]:
        print("ok  " if check["holds"] else "FAIL", check["check"])
    for row in result["table"]:
        print(row)
    expect(code == 0 and result["verdict"] == "pass", "all checks hold")
    expect(len(result["checks"]) >= 10, "none is missing")
    expect(Path(result["report"]).exists(), "the report exists")
    expect(sum(step["seconds"] for step in result["story"]) < 600, "within ten minutes")
