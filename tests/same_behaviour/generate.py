"""Observes `specdec generate`."""


def observe_generate(o):
    with_draft = "generate --target target --draft other --threads 1 --max-tokens 24"
    plain = "generate --target target --threads 1 --max-tokens 24"
    o.run("generate-text", f"{with_draft} --prompt red --k 3 --temperature 0")
    for verify in ("token", "block", "target", "coupled"):
        o.run_json(f"generate-{verify}", f"{with_draft} --prompt 'red green' --k 3 --seed 5 --verify {verify}")
    for verify in ("token", "block"):
        o.run_json(
            f"generate-tree-{verify}",
            f"{with_draft} --prompt 'red green' --tree 2,2,1 --k 3 --seed 5 --verify {verify}",
        )
    o.run_json("generate-suffix", f"{plain} --prompt 'one two one two one two' --suffix --k 4 --seed 2 --ignore-eos")
    o.run_json(
        "generate-options",
        f"{with_draft} --messages chat.json --k 2 --seed 3 --temperature 0.8 --top-k 50 --top-p 0.9 "
        "--min-p 0.01 --presence-penalty 0.5 --frequency-penalty 0.25 --repetition-penalty 1.2 "
        "--logit-bias 101=5 --bad-word e --ignore-eos",
    )
    o.run_json("generate-schema", f"{with_draft} --prompt '' --k 2 --temperature 0 --json-schema schema.json")
    o.run(
        "generate-regex",
        f"{with_draft} --prompt 'Shall I? ' --k 2 --seed 1 --regex '(yes|no), because [a-z ]{{1,9}}\\.'",
    )
    for dtype in ("bf16", "int8"):
        o.run_json(f"generate-{dtype}", f"{with_draft} --prompt 'red green' --k 3 --seed 5 --dtype {dtype}")
    o.run_json(
        "generate-reference-kernels",
        f"{with_draft} --prompt 'red green' --k 3 --seed 5",
        env={"SPECDEC_KERNELS": "ref"},
    )
    (o.scratch / "settings.toml").write_text('threads = 1\n[generate]\nmax-tokens = 4\nseed = 9\nk = "2"\n')
    o.run_json(
        "generate-settings",
        "--config settings.toml --log-format json -v generate --target target --draft other --prompt red",
        env={"SPECDEC_GENERATE_SEED": "5"},
    )
    for name, words in {
        "no-model": "--target nowhere --prompt x",
        "no-draft": "--target target --prompt x --k 2",
        "both": "--target target --prompt x --messages chat.json",
    }.items():
        o.run(f"generate-error-{name}", f"generate {words}")
