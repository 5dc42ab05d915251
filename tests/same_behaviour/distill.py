"""Observes `specdec distill`."""


def observe_distill(o):
    run = (
        "distill --target target --data data --out run --draft prune:1 --lr 0.01 --batch-tokens 128 "
        "--evaluate-every 10 --evaluate-rows 16 --checkpoint-every 10 --max-steps 20 --threads 1 "
        "--seed 1 -q"
    )
    o.run_json("distill", f"{run}")
    o.keep_tree("distill-run", "run", omit=[r"tfevents"])  # TensorBoard's events contain times
    o.run_json("distill-again", f"{run} --resume")
    short = (
        "distill --target target --data data --max-steps 4 --batch-tokens 128 --lr 0.01 "
        "--evaluate-every 2 --evaluate-rows 8 --threads 1 -q"
    )
    o.run_json("distill-model", f"{short} --draft model:other --loss '0.1*ce+0.9*tv' --temperature 0.8 --out run-model")
    o.run_json(
        "distill-config",
        f"{short} --draft config:other/config.json --draft-vocab 100 --loss kl --accumulate 2 "
        "--weight-decay 0.1 --out run-config",
    )
    for folder in ("run-model", "run-config"):
        o.keep_tree(
            f"distill-{folder}", folder, omit=[r"tfevents", r"report\.", r"\.lock", r"specdec\.json", r"state\.json"]
        )
    o.run("distill-error-other-options", f"{run} --resume --loss kl")
    o.run("distill-error-taken", f"{run}")
