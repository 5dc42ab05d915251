"""Observes `specdec data`."""

import json
import random
import shutil

from same_behaviour.observer import SOURCE


def observe_data(o):
    salt = "--salt salt"
    o.run_json("data-ingest", f"data ingest log.jsonl --target target --holdout 0.5 {salt} --out data")
    o.keep_tree("data", "data")
    o.run(
        "data-ingest-text",
        "data ingest log.jsonl --target target --holdout-count 4 --max-length 20 --near-duplicates 0.8 "
        f"--domain words {salt} --out data-short",
    )
    o.keep_tree("data-short", "data-short")
    for format in sorted(p.name for p in (SOURCE / "tests/data/fixtures").iterdir() if p.is_dir()):
        shutil.copytree(SOURCE / "tests/data/fixtures" / format, o.scratch / "logs" / format)
        o.run_json(f"data-format-{format}", f"data ingest logs/{format} --records {salt} --out records/{format} -q")
        o.keep_tree(f"data-records/{format}", f"records/{format}")
    personal = [
        {
            "id": "p1",
            "user": "team-a",
            "messages": [
                {"role": "user", "content": "write to jane.doe@example.com or +49 30 1234567"},
                {"role": "assistant", "content": "key sk-proj-Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0 and 10.1.2.3"},
            ],
        },
        {
            "id": "p2",
            "user": "team-b",
            "domain": "code",
            "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}],
        },
        {"id": "p3", "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]},
        {
            "id": "p4",
            "opt_out": True,
            "messages": [{"role": "user", "content": "z"}, {"role": "assistant", "content": "z"}],
        },
        {"odd": 1},
    ]
    (o.scratch / "personal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in personal) + "{broken\n\n[1]\n")
    o.run_json("data-personal", f"data ingest personal.jsonl --target target --holdout 0.5 {salt} --out data-personal")
    o.keep_tree("data-personal", "data-personal")
    rng = random.Random(5)
    (o.scratch / "many.jsonl").write_text(
        "".join(
            json.dumps(
                {
                    "id": f"m{i}",
                    "user": f"team-{i % 3}",
                    "conversation_id": f"c{i // 2}",
                    "messages": [
                        {
                            "role": "user",
                            "content": rng.choice(["paint it red", "count to ten", "sort the list"]) + f" {i // 4}",
                        },
                        {"role": "assistant", "content": "yes " * (i % 5 + 6) + str(i // 3)},
                    ],
                }
            )
            + "\n"
            for i in range(60)
        )
    )
    o.run_json(
        "data-selection",
        "data ingest many.jsonl --target target --domain-clusters 2 --mix cluster-1=0.5,cluster-2=0.5 "
        "--tenant-cap 8 --near-duplicates 0.9 --order shuffle --seed 4 --skip 2 --limit 50 "
        f"--holdout-count 3 {salt} --out data-selection -q",
    )
    o.keep_tree("data-selection", "data-selection")
    (o.scratch / "rules").write_text("fruit: apple|pear\nred in prompt: red\n")
    o.run_json(
        "data-stdin",
        "data ingest - --format plain --separator '\n\n' --target target --domain-rules rules "
        f"--holdout-rule first --holdout-count 1 {salt} --out data-plain",
        stdin=b"an apple a day\n\nred is a colour\n\nand nothing else\n",
    )
    for folder in ("data", "data-personal", "data-plain"):
        o.run_json(f"data-stats-{folder}-json", f"data stats {folder}")
        o.run(f"data-stats-{folder}", f"data stats {folder}")
        o.run_json(f"data-audit-{folder}-json", f"data audit {folder} --target target")
        o.run(f"data-audit-{folder}", f"data audit {folder}")
    shutil.copytree(o.scratch / "data", o.scratch / "data-damaged")
    with (o.scratch / "data-damaged/train-00000.jsonl").open("a") as file:
        file.write("{}\n")
    for name, words in {
        "damaged": "stats data-damaged",
        "missing": "stats nowhere",
        "not-ours": "ingest log.jsonl --target target --out target",
        "no-target": "ingest log.jsonl --out x",
        "no-source": "ingest absent.jsonl --records --out x",
    }.items():
        o.run(f"data-error-{name}", f"data {words}")
