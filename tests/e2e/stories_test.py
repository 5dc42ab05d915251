"""Tests with real models. Greedy text must equal the documented text, with and without speculation. Acceptance must
equal that of an independent computation. Packages whose draft and target do not fit must be refused."""

import shutil
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from specdec_run import SHARED, expect, need_shared, run, run_json

need_shared(
    "data/models/stories260K",
    "data/models/llama2xs-279K",
    "data/tinystories-text/tinystories_sample_2MB.txt",
    "data/stories260K/doc_stories260K.md",
)
target, other = SHARED / "data/models/stories260K", SHARED / "data/models/llama2xs-279K"
texts = SHARED / "data/tinystories-text/tinystories_sample_2MB.txt"
documentation = (SHARED / "data/stories260K/doc_stories260K.md").read_text()

with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    greedy = [
        "generate",
        "--target",
        target,
        "--prompt",
        "",
        "--temperature",
        0,
        "--max-tokens",
        256,
        "--dtype",
        "fp32",
    ]
    _, plain = run_json(*greedy, "--k", 0)
    expect(len(plain["token_ids"]) == 256, "256 greedy tokens")
    flat = lambda text: " ".join(text.split())
    expect(flat(plain["text"]) in flat(documentation), "they are the documented text")
    for k in range(1, 9):
        _, fast = run_json(*greedy, "--draft", other, "--k", k)
        expect(
            fast["token_ids"] == plain["token_ids"] and fast["accepted"] > 0,
            f"K={k}: the same tokens, {fast['accepted']} accepted",
        )

    run(
        "data",
        "ingest",
        texts,
        "--target",
        target,
        "--min-chars",
        101,
        "--limit",
        200,
        "--holdout",
        1,
        "--max-length",
        256,
        "--no-dedup",
        "--no-redact",
        "--out",
        work / "data",
    )
    gate = [
        "validate",
        "--data",
        work / "data",
        "--contexts",
        "data",
        "--max-requests",
        0,
        "--no-early-stop",
        "--temperature",
        1,
        "--dtype",
        "fp32",
    ]
    code, report = run_json(
        *gate, "--target", target, "--draft", other, "--parts", "acceptance", "--out", work / "gate", code=(0, 3, 4)
    )
    figures = report["acceptance"]
    print(figures["alpha"], figures["alpha_tokens"], figures["greedy_agreement"], figures["tokens"])
    expect(abs(figures["alpha"] - 0.638) <= 0.005, "alpha 0.638 ± 0.005")
    expect(abs(figures["greedy_agreement"] - 0.609) <= 0.005, "greedy agreement 0.609 ± 0.005")
    expect(figures["tokens"] == 50651, "over 50,651 tokens")

    pack = [
        "package",
        "--report",
        work / "gate/report.json",
        "--store",
        work / "store",
        "--allow-failed",
        "--channel",
        "test",
    ]
    run(*pack, "--target", other, "--draft", target, code=5)
    expect(
        not (work / "store/refs/test").exists(),
        "a report of the swapped pair is refused with exit 5, and nothing is published",
    )
    run(*pack, "--target", target, "--draft", other)
    digest = (work / "store/refs/test").read_text().strip()
    package = next((work / "store/packages").iterdir())
    expect(digest.split("-")[-1] in package.name, "the channel names the package")
    run("package", "verify", package)
    github = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_OUTPUT": str(work / "output"),
        "GITHUB_STEP_SUMMARY": str(work / "summary"),
    }
    code, paired = run_json(
        *gate,
        "--target",
        target,
        "--draft",
        other,
        "--parts",
        "acceptance",
        "--against",
        f"{work}/store:test",
        "--out",
        work / "paired",
        code=4,
        env=github,
    )
    expect(
        paired["baseline"]["alpha_difference"] == 0
        and paired["baseline"]["paired_requests"] == 200
        and paired["baseline"]["draft"]["id"] == paired["inputs"]["draft"]["fingerprint"]["id"],
        "the draft that a channel serves is scored on the same requests",
    )
    expect(
        (work / "output").read_text().startswith("verdict=inconclusive\nacceptance=0.6")
        and (work / "summary").read_text().startswith("### Draft validation"),
        "a job of GitHub Actions gets its outputs and its summary; stdout is one object",
    )
    junit = ElementTree.parse(work / "paired/report.junit.xml").getroot()
    expect(
        [case.get("name") for case in junit.iter("testcase")]
        == ["lossless", "acceptance", "against the serving draft", "speed-up"],
        "and JUnit a case a check",
    )
    for file in (package / "target").iterdir():
        file.chmod(0o644)
    shutil.copytree(other, package / "target", dirs_exist_ok=True)
    run("package", "verify", package, code=5)
    run("serve", package, "--port", 0, code=5)
    expect(True, "a package whose target was replaced exits 5")
