"""Observes `specdec validate` and `specdec bench`."""

import re


def observe_validate(o):
    sure = "--target target --data data --threads 1 --contexts data -q"
    # The acceptance of this draft is below the floor, so the verdict is a failure, whatever the speed of the machine.
    o.run_json(
        "validate-all",
        f"validate {sure} --draft other --out gate-all --k 2 --floor 0.95 --max-k 2 --speed-prompts 4 "
        "--speed-tokens 8 --rollout-tokens 16 --rollout-requests 8",
    )
    o.keep_tree("validate-all-out", "gate-all", omit=[r"report\.(html|md)", r"junit"])
    o.keep(
        "validate-all-out/report.junit.names",
        "\n".join(
            re.findall(
                r'(?:testsuite|testcase|testsuites) [^>]*?name="[^"]*"',
                (o.scratch / "gate-all/report.junit.xml").read_text(),
            )
        )
        + "\n",
    )
    o.keep(
        "validate-all-out/report.md.words",
        re.sub(
            r"[0-9]+(\.[0-9]+)?",
            "<n>",
            (o.scratch / "gate-all/report.md").read_text().split("<details><summary>Speed")[0].split("| Speed-up")[0],
        ),
    )
    o.run_json(
        "validate-self", f"validate {sure} --draft self --out gate --k 3 --parts acceptance,rollout --rollout-tokens 16"
    )
    o.keep_tree("validate-self-out", "gate")
    o.run_json(
        "validate-baseline",
        f"validate {sure} --draft run/draft --out gate-baseline --parts acceptance,rollout --baseline gate/report.json "
        "--min-gain 0.9 --rollout-tokens 8 --verify block",
    )
    o.keep_tree("validate-baseline-out", "gate-baseline")
    o.run_json(
        "validate-against",
        f"validate {sure} --draft run/draft --out gate-against --parts acceptance,rollout --against other "
        "--segments-floor 0.5 --rollout-tokens 8 --predict c=0.05,v=1.1,batch=8 --temperature 0.7 "
        "--top-k 20 --max-requests 12 --k 2",
    )
    o.keep_tree("validate-against-out", "gate-against")
    o.run_json(
        "validate-lossless",
        f"validate {sure} --draft self --out gate-lossless --parts lossless,acceptance --k 2 "
        "--rollout-tokens 8 --goal 0.9 --temperature 0.5",
    )
    o.run("validate-text", f"validate {sure} --draft other --out gate-other --parts acceptance --no-early-stop")
    o.run("validate-error-floor", f"validate {sure} --draft other --out x --floor 0.1")
    o.run_json(
        "bench",
        "bench --target target --draft other --data data --out bench --ks 2 --batches 1,2 --prompts 2 "
        "--tokens 8 --threads 1 -q",
    )
