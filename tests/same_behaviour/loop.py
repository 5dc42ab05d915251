"""Observes `specdec loop` and `specdec init`."""

import json
import shutil
import subprocess


def observe_loop(o):
    folder = o.scratch / "loop"
    folder.mkdir()
    shutil.copy(o.scratch / "log.jsonl", folder / "day-1.jsonl")
    (folder / "LOOP.toml").write_text("""[loop]
target = "../target"
logs = ["*.jsonl"]
work = "work"
store = "store"
channel = "production"
[data]
holdout = 0.5
[distill]
max-steps = 4
batch-tokens = 128
lr = 0.01
evaluate-every = 4
evaluate-rows = 8
threads = 1
[validate]
parts = "acceptance"
contexts = "data"
threads = 1
exit-zero = true
[package]
allow-failed = true
""")
    # The key of a run is a digest that covers the paths of the logs. It therefore depends on the scratch folder, which
    # differs between runs.
    plan = subprocess.run(
        [str(o.program), "--json", "loop", "run", "loop/LOOP.toml", "--plan"],
        cwd=o.scratch,
        env=o.environment,
        capture_output=True,
        check=True,
    )
    o.normaliser.learn(json.loads(plan.stdout)["key"], "<key>")

    def learn_package(_):
        channel = folder / "store/refs/production"
        if channel.is_file():
            o.normaliser.learn_digest(channel.read_text().split()[0], "package-loop")

    o.run_json(
        "loop-run", "loop run loop/LOOP.toml", err=False, learn=learn_package
    )  # err=False, because the lines of progress depend on time
    o.run_json("loop-run-again", "loop run loop/LOOP.toml")
    o.keep_tree("loop-work", "loop/work", texts=False, binaries=False)
    shutil.move(folder / "work", folder / "work-1")
    o.run_json("loop-plan-json", "loop run loop/LOOP.toml --plan")
    o.run("loop-plan", "loop run loop/LOOP.toml --plan")
    (folder / "wrong.toml").write_text("[loop]\ntarget = '../target'\nlog = []\n")
    o.run("loop-error-key", "loop run loop/wrong.toml")
    o.run("loop-error-missing", "loop run loop/absent.toml")


def observe_init(o):
    o.run_json("init", "init made --target target --requests-per-day 500")
    o.keep_tree("init-files", "made")
    o.run("init-again", "init made --only loop,systemd")
    o.run("init-only", "init made-2 --only loop --channel candidate --logs 'a b/*.jsonl'")
    o.keep_tree("init-files-2", "made-2")
    o.run("init-error", "init made --only lop")
