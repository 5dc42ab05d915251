"""Tests the store of packages through the program. A running server protects its package from gc, an encrypted minisign
key signs packages, a store can require signatures, push and pull work with directories and S3, and lint writes
SARIF."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from background import Server
from fake_s3 import FakeS3
from specdec_run import SOURCE, expect, run, run_json, specdec
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-package-"))
target, data, store = work / "target", work / "data", work / "store"
KEYS = SOURCE / "tests/base/minisign"


GATE = {"parts": "acceptance", "contexts": "data", "quiet": True}


def make(seed, channel=None):
    """Validates and packages a new draft with random weights of this seed. Returns the package's digest."""
    pair, gate = {"target": target, "draft": work / f"draft-{seed}"}, work / f"gate-{seed}"
    write_tiny_model(pair["draft"], layers=1, seed=seed)
    specdec.validate(**pair, **GATE, data=data, out=gate)
    given = {"report": gate / "report.json", "store": store, "channel": channel}
    return specdec.package(**pair, **given, allow_failed=True, name="tiny", quiet=True).digest


try:
    write_tiny_model(target, layers=2, seed=1)
    write_traffic(work / "log.jsonl", 24)
    _, out, err = run(f"data ingest {work}/log.jsonl --target {target} --holdout 0.5 --out {data}")
    expect(
        out.endswith(f"written to {data}\n")
        and " loss tokens\n" in out
        and "12 of 24 conversations are held out, and a verdict of distill needs at least 15: give more logs" in err
        and re.search(r"ingest  [1-9]\d+ / [1-9]\d+ k?B ", err),
        f"ingest says that the data are too few, and its progress in a readable unit: {out} {err}",
    )
    write_traffic(work / "more.jsonl", 40)
    for share, following in (
        (0, f"data ingest --holdout 0.4 {work}/more.jsonl --target {target} --out {work}/more"),
        (0.4, f"distill --target {target} --data {work}/more --draft prune:2 --out run"),
    ):
        _, out, _ = run(f"data ingest {work}/more.jsonl --target {target} --out {work}/more --holdout {share}")
        expect(out.endswith(f"next     specdec {following}\n"), f"ingest says what to run next: {out}")
    first, second = make(2), make(3)
    specdec.package_promote(first, store=store, channel="production", quiet=True)
    server = Server(f"{store}:production")
    specdec.package_promote(second, store=store, channel="production", quiet=True)
    (target / "LICENSE").write_bytes(bytes(range(256)) * (66 << 12))  # 66 MiB, more than one part of S3
    third = make(4, "production")
    gc = specdec.package_gc(store=store, keep=1).raw
    kept = {k["digest"]: k["why"] for k in gc["kept"]}
    expect(
        kept[first] == "in use"
        and kept[third] == "channel production"
        and [r["digest"] for r in gc["removed"]] == [second],
        f"gc leaves the package that a server still serves, though no channel names it: {gc}",
    )
    server.drain()
    specdec.package_pin(first, store=store, why="audit")
    gc = specdec.package_gc(store=store, keep=1).raw
    expect(gc["verdict"] == "unchanged", "a pin keeps it")
    specdec.package_unpin(first, store=store)
    gc = specdec.package_gc(store=store, keep=1, dry_run=True).raw
    expect(
        gc["verdict"] == "would_change" and (store / f"packages/sha256-{first}").is_dir(),
        "a dry run says what would go",
    )

    state = work / "state"
    os.environ["XDG_STATE_HOME"] = str(state)
    passphrase = work / "passphrase"
    passphrase.write_text("correct horse\n")
    mirror = work / "mirror"
    mirror.mkdir()
    shutil.copy(KEYS / "locked.pub", mirror / "trusted.pub")
    to_mirror = f"package push {store}:production --store {mirror} --channel production"
    run(to_mirror, code=7, last_line=["not signed", "demands it"])
    run(
        f"package sign {store}:production --key {KEYS}/locked.key",
        code=2,
        last_line=["is encrypted", "--passphrase-file"],
    )
    specdec.package_sign(f"{store}:production", key=KEYS / "locked.key", passphrase_file=passphrase)
    verified = specdec.package_verify(f"{store}:production", public_key=KEYS / "locked.pub").raw
    expect(len(verified["signer"]) == 16, "signed with minisign's own encrypted key")
    run(
        f"package verify {store}:production --public-key {KEYS}/plain.pub",
        code=7,
        last_line=["not among the trusted ones"],
    )
    if shutil.which("minisign"):
        package = store / f"packages/sha256-{third}"
        expect(
            subprocess.run(
                ["minisign", "-q", "-V", "-p", KEYS / "locked.pub", "-m", package / "manifest.json"]
            ).returncode
            == 0,
            "minisign takes the signature",
        )
    run(to_mirror, code=2, last_line=["--key", "demands signed channels"])
    signed_by = f"--key {KEYS}/locked.key --passphrase-file {passphrase}"
    run(f"{to_mirror} {signed_by}")
    shutil.rmtree(mirror / "packages"), shutil.rmtree(mirror / "refs")
    _, pushed = run_json(f"{to_mirror} {signed_by}")
    expect(
        pushed["digest"] == third and pushed["is_new"] and pushed["channel"]["changed"],
        "a store that demands signatures takes a signed package",
    )
    promote = f"package promote sha256-{third} --store {mirror} --channel production {signed_by}"
    here = work / "here"
    first_state = (mirror / "refs/production").read_bytes()
    specdec.package_verify(f"{mirror}:production")  # stores the channel's signed sequence number here
    (mirror / "refs/production").write_text(third + "\n")
    run(
        f"package verify {mirror}:production",
        code=7,
        last_line=["not signed", f"specdec package promote sha256-{third}", "--key"],
    )
    _, mended = run_json(promote)
    expect(mended["number"] == 2, "the command that the message names mends it, with a new number")
    specdec.package_verify(f"{mirror}:production")
    (mirror / "refs/production").write_bytes(first_state)
    run(
        f"package verify {mirror}:production",
        code=7,
        last_line=["an older state of the channel", "number 1", "number 2"],
    )
    run(
        f"generate --target {mirror}:production --prompt x --max-tokens 2",
        code=7,
        last_line=["an older state of the channel"],
    )
    _, mended = run_json(promote)
    expect(mended["number"] == 3, "and so does it after a backup was restored")
    (current := work / "current").symlink_to(mirror / f"packages/sha256-{third}")
    (signature := mirror / f"packages/sha256-{third}/manifest.json.minisig").rename(work / "aside")
    run(
        f"generate --target {current} --prompt x --max-tokens 2",
        code=7,
        last_line=["not signed", "demands it"],
    )
    (work / "aside").rename(signature)
    pulled = specdec.package_pull(f"{mirror}:production", store=here).raw
    expect(pulled["path"].startswith(str(here)) and pulled["is_new"], "and gives it on")
    specdec.package_verify(pulled["path"])
    (mirror / f"packages/sha256-{third}/manifest.json.minisig").unlink()
    run(
        f"generate --target {mirror}:production --prompt x --max-tokens 2",
        code=7,
        last_line=["not signed"],
    )

    s3 = FakeS3()
    remote = "s3://bucket/some drafts/tiny"
    push = f"package push {store}:production --store '{remote}' --channel production"
    s3.statuses = [503, 500]
    _, pushed = run_json(push, env=s3.environment())
    prefix = f"bucket/some drafts/tiny/packages/sha256-{third}/"
    files = {k.removeprefix(prefix): v for k, v in s3.objects.items() if k.startswith(prefix)}
    package = store / f"packages/sha256-{third}"
    expect(
        pushed["is_new"]
        and files == {str(f.relative_to(package)): f.read_bytes() for f in package.rglob("*") if f.is_file()},
        "every file is in S3, after two failures",
    )
    expect(s3.objects["bucket/some drafts/tiny/refs/production"].decode().strip() == third, "and the channel names it")
    order = [path for method, path in s3.requests if method == "PUT" and "packages" in path]
    expect(
        order[-1].endswith("manifest.json") and sum("partNumber=" in path for path in order) == 2,
        "a large file in parts, the manifest last",
    )
    del s3.objects[prefix + "draft/config.json"], s3.objects[prefix + "manifest.json"]  # as after a killed push
    s3.requests.clear()
    run(push, env=s3.environment())
    sent = [path for method, path in s3.requests if method == "PUT" and "packages" in path]
    expect(len(sent) == 3, f"a push that died goes on: the file, the signature, the manifest, found {len(sent)}")
    _, again = run_json(push, env=s3.environment())
    expect(not again["is_new"], "a second publisher finds it there")
    # If the bucket refuses the manifest (412), the channel must not move to the incomplete package.
    channel = "bucket/some drafts/tiny/refs/production"
    del s3.objects[prefix + "manifest.json"], s3.objects[channel]
    s3.conditional = [412]
    run(push, code=75, env=s3.environment(), last_line=["manifest.json", "does not exist"])
    expect(channel not in s3.objects, "no channel without its package")
    s3.conditional = [409]
    run(push, env=s3.environment())
    expect(prefix + "manifest.json" in s3.objects and channel in s3.objects, "a conflict is tried again")
    # A signed channel must stay signed, and its sequence number must never decrease.
    signing = f"{push} {signed_by}"
    for number in (1, 2):
        run(signing, env=s3.environment())
        expect(
            f'"number":{number}' in s3.objects["bucket/some drafts/tiny/refs/production"].decode(),
            f"signed, number {number}",
        )
    signed = s3.objects["bucket/some drafts/tiny/refs/production"]
    run(push, code=2, env=s3.environment(), last_line=["--key", "is signed (number 2)"])
    expect(
        s3.objects["bucket/some drafts/tiny/refs/production"] == signed,
        "a push without the key changes no signed channel",
    )
    far = work / "far"
    pull = f"package pull '{remote}:production' --store {far} --channel production"
    s3.cut = [1500]
    run(pull, code=75, env=s3.environment())
    expect(not list((far / "packages").iterdir()), "a line that broke leaves no package")
    s3.requests.clear()
    _, pulled = run_json(pull, env=s3.environment())
    asked = [path for method, path in s3.requests if method == "GET" and path.endswith("/draft/config.json")]
    expect(
        pulled["is_new"] and pulled["channel"]["changed"] and pulled["digest"] == third and len(asked) == 0,
        "the next pull goes on: what came is not asked for again",
    )
    specdec.package_verify(f"{far}:production")
    s3.objects[prefix + "draft/model.safetensors"] = s3.objects[prefix + "draft/model.safetensors"][:-1] + b"x"
    run(
        f"package pull '{remote}:sha256-{third}' --store {work}/farther",
        code=7,
        env=s3.environment(),
        last_line=["is not what the manifest says"],
    )
    run(pull, code=2, env=s3.environment() | {"AWS_SECRET_ACCESS_KEY": "wrong"}, last_line=["refused"])
    run(
        f"package pull '{remote}:canary' --store {far}",
        code=7,
        env=s3.environment(),
        last_line=["no channel 'canary'"],
    )

    # A quantised draft is validated like any draft, and its report is packaged with it.
    reports, alphas = [work / "gate-4/report.json"], {}
    for form in ("fp8", "int8"):
        quantised = work / f"draft-4-{form}"
        made = specdec.package_quantise(draft=work / "draft-4", format=form, out=quantised)
        size = made.raw["bytes"]
        expect(0 < made.relative_error < 0.05 and size["after"] < size["before"], f"{form}: {made.raw}")
        specdec.validate(**GATE, target=target, draft=quantised, data=data, out=work / f"gate-{form}")
        reports.append(work / f"gate-{form}/report.json")
    for form, report in zip(("", "fp8", "int8"), reports):
        alphas[form] = json.loads(report.read_text())["acceptance"]["alpha"]
    expect(
        0 < abs(alphas["fp8"] - alphas[""]) < 0.05 and 0 < abs(alphas["int8"] - alphas[""]) < 0.01,
        f"the engine reads both, and they are near the draft: {alphas}",
    )
    run(
        f"package quantise --draft {work}/draft-4 --format fp8 --out {work}/draft-4-fp8",
        code=2,
        last_line=["new or an empty directory"],
    )
    (target / "LICENSE").unlink()
    create = f"package --target {target} --draft {work}/draft-4 --store {work}/variants --allow-failed --name tiny"
    create += "".join(f" --report {report}" for report in reports)
    _, made = run_json(f"{create} --quantise fp8,int8")
    manifest = json.loads(Path(made["path"], "manifest.json").read_text())
    expect(
        [(v["format"], v["report"]["acceptance"]["alpha"]) for v in manifest["variants"]]
        == [(f, alphas[f]) for f in ("fp8", "int8")],
        "each variant has its own figures",
    )
    specdec.package_verify(made["path"])
    run(f"{create} --quantise int8", code=7, last_line=["gate-fp8", "no variant"])

    code, out, _ = run(f"package lint {here}:sha256-{third} --format sarif")
    log = json.loads(out)
    expect(
        log["version"] == "2.1.0" and {r["level"] for r in log["runs"][0]["results"]} <= {"warning"},
        "lint of a package as SARIF",
    )
    config = json.loads((work / "draft-2/config.json").read_text())
    (work / "draft-2/config.json").write_text(json.dumps(config | {"medusa_num_heads": 4}))
    run(f"package lint --target {target} --draft {work}/draft-2", code=7)
finally:
    shutil.rmtree(work, ignore_errors=True)
