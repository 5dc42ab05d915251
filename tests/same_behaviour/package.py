"""Observes `specdec package`."""

import json
import re
import shutil

from made_report import FIXED_TIME, with_speed
from same_behaviour.observer import SOURCE, next_second


def observe_package(o):
    # Gives the reports fixed times, so that digests of packages' files are the same in every run.
    read = lambda gate: json.loads((o.scratch / gate / "report.json").read_text())
    for name, report in {
        "passed": with_speed({**read("gate"), **FIXED_TIME}, 3),
        "failed": dict(read("gate-other"), **FIXED_TIME),
        "against": dict(read("gate-against"), **FIXED_TIME),
    }.items():
        (o.scratch / f"{name}.json").write_text(json.dumps(report))

    # Gives the training record of the distilled draft fixed times, too.
    shutil.copytree(o.scratch / "run/draft", o.scratch / "bound")
    made = json.loads((o.scratch / "bound/specdec.json").read_text())
    made["training"].update(FIXED_TIME)
    speed = {"seconds": 10.5, "tokens_per_second": 1000.5}
    made["training"]["training"].update(speed)
    made["training"]["cost"].update(speed, training_seconds=10.5, teacher_share=0.25)
    (o.scratch / "bound/specdec.json").write_text(json.dumps(made))

    def package(name, words):
        next_second()
        # A package's digest covers its manifest, which contains a time, so the digest differs between runs.
        learn = lambda out: o.normaliser.learn_digest(json.loads(out)["digest"], f"package-{name}")
        made = o.run_json(f"package-{name}", f"package --target target --store store {words}", learn=learn)
        return made["digest"]

    first = package("first", "--draft self --report passed.json --channel production --name tiny")
    # Without --engines specdec, launch files of other engines would name the target's folder, which differs between
    # runs.
    third = package("third", "--draft bound --report against.json --allow-failed --reference-target --engines specdec")
    second = package(
        "second", "--draft other --report failed.json --allow-failed --channel production --visibility public"
    )
    o.run("package-error-failed", "package --target target --draft other --report gate-other/report.json --store store")
    o.run(
        "package-error-other-pair", "package --target target --draft self --report gate-other/report.json --store store"
    )
    for name, digest in (("first", first), ("second", second), ("third", third)):
        o.keep_tree(f"package-files/{name}", f"store/packages/sha256-{digest}")
    o.run_json("package-verify-json", "package verify store:production")
    o.run("package-verify", f"package verify store:sha256-{first[:12]}")
    for name, digest in (("first", first), ("second", second)):
        o.run_json(f"package-lint-{name}-json", f"package lint store/packages/sha256-{digest}")
        o.run(f"package-lint-{name}", f"package lint store/packages/sha256-{digest}")
    o.run("package-lint-sarif", "package lint --target target --draft other --format sarif")
    o.run_json("package-list-json", "package list --store store")
    o.run("package-list", "package list --store store")
    next_second()
    o.run_json("package-promote", f"package promote sha256-{second[:12]} --store store --channel canary --why 'try it'")
    o.run_json("package-rollback", "package rollback --store store --channel production")
    o.run("package-rollback-again", "package rollback --store store --channel production")
    o.run_json("package-pin", f"package pin {third} --store store --why audit")
    o.run_json("package-gc-dry", "package gc --store store --keep 1 --dry-run")
    o.run("package-gc", "package gc --store store --keep 1")
    o.run_json("package-unpin", f"package unpin {third} --store store")
    o.run_json("package-push", "package push store:production --store mirror --channel production")
    o.run_json("package-gc-last", "package gc --store store --keep 1")
    o.run_json("package-quantise", "package quantise --draft other --format int8 --out other-int8")
    o.keep_tree("package-int8", "other-int8")
    for folder in ("store", "mirror"):
        o.keep_tree(f"package-{folder}-refs", f"{folder}/refs")
    keys = SOURCE / "tests/base/minisign"
    shutil.copy(keys / "plain.key", o.scratch / "plain.key")
    shutil.copy(keys / "plain.pub", o.scratch / "plain.pub")
    (o.scratch / "plain.key").chmod(0o600)
    shutil.copytree(o.scratch / "mirror", o.scratch / "damaged")
    o.run_json("package-sign", "package sign mirror:production --key plain.key")
    o.run_json("package-verify-signed", "package verify mirror:production --public-key plain.pub")
    shutil.copy(keys / "plain.pub", o.scratch / "mirror/trusted.pub")
    o.run("package-error-unsigned-channel", "package verify mirror:production")
    o.run_json(
        "package-promote-signed",
        f"package promote sha256-{first[:12]} --store mirror --channel production --key plain.key",
    )
    o.run("package-verify-trusted", "package verify mirror:production")
    o.keep(
        "package-signed-channel",
        re.sub(
            r"(?m)^(?=R[A-Za-z0-9+/=]{90})\S+$|^[A-Za-z0-9+/]{86}==$|^trusted comment: .*$",
            "<signature>",
            (o.scratch / "mirror/refs/production").read_text(),
        ),
    )
    with next((o.scratch / "damaged/packages").glob("*/draft/config.json")).open("a") as file:
        file.write(" ")
    o.run("package-error-damaged", "package verify damaged:production")
    o.run("package-error-no-channel", "package verify store:nightly")
    o.package = {"first": first, "second": second}
