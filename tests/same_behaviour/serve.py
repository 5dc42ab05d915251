"""Observes `specdec serve`."""

import json
import re

from same_behaviour.server import Server
from tiny_model import VOCAB


def observe_serve(o):
    server = Server(
        o,
        "serve-package",
        "store:production --k 3 --record recorded --record-rejects 1 --acceptance-log acceptance.jsonl "
        "--admin-socket admin.sock --served-model-name tiny",
    )
    chat, text = "/v1/chat/completions", "/v1/completions"
    message = [{"role": "user", "content": "red green"}]
    for path in (
        "/v1/models",
        "/v1/models/tiny",
        "/v1/models/none",
        "/health",
        "/ready",
        "/gate",
        "/gate?floor=2",
        "/nowhere",
    ):
        server.ask("get" + re.sub(r"[/?=]", "-", path), "GET", path)
    server.ask("dashboard", "GET", "/dashboard")
    requests = {
        "greedy": (text, {"prompt": "red", "temperature": 0, "max_tokens": 24}),
        "seeded": (
            text,
            {
                "prompt": "red",
                "seed": 7,
                "max_tokens": 24,
                "temperature": 0.9,
                "top_p": 0.95,
                "top_k": 40,
                "min_p": 0.001,
                "ignore_eos": True,
            },
        ),
        "plain": (text, {"prompt": "red", "seed": 7, "max_tokens": 24, "speculative": False, "ignore_eos": True}),
        "eos": (text, {"prompt": "red", "seed": 1, "max_tokens": 200}),
        "n-prompts": (text, {"prompt": ["one", "two"], "n": 2, "seed": 3, "max_tokens": 8}),
        "token-ids": (
            text,
            {
                "prompt": [256, 65, 66],
                "seed": 3,
                "max_tokens": 8,
                "return_token_ids": True,
                "echo": True,
                "logprobs": 2,
            },
        ),
        "score": (text, {"prompt": "red", "echo": True, "logprobs": 1, "max_tokens": 0}),
        "stop": (text, {"prompt": "red", "seed": 7, "max_tokens": 64, "stop": ['"', "e", "A"], "ignore_eos": True}),
        "penalties": (
            text,
            {
                "prompt": "red",
                "seed": 4,
                "max_tokens": 24,
                "presence_penalty": 0.5,
                "frequency_penalty": 0.5,
                "repetition_penalty": 1.2,
                "logit_bias": {"101": 4, "65": -100},
                "bad_words": ["B"],
            },
        ),
        "ends": (
            text,
            {
                "prompt": "red",
                "seed": 4,
                "max_tokens": 24,
                "min_tokens": 6,
                "stop_token_ids": [101, 110],
                "stop": ["a"],
                "include_stop_str_in_output": True,
                "allowed_token_ids": list(range(97, 123)),
                "truncate_prompt_tokens": 3,
                "return_token_ids": True,
            },
        ),
        "tokenize": ("/tokenize", {"prompt": "red", "return_token_strs": True}),
        "tokenize-chat": ("/tokenize", {"messages": message}),
        "detokenize": ("/detokenize", {"tokens": [82, 101, 100]}),
        "metrics": (
            text,
            {
                "prompt": "red",
                "seed": 4,
                "max_tokens": 24,
                "include_metrics": True,
                "metadata": {"domain": "colours", "conversation_id": "c-1"},
            },
        ),
        "chat": (chat, {"messages": message, "seed": 5, "max_tokens": 24, "logprobs": True, "top_logprobs": 2}),
        "chat-n": (chat, {"messages": message, "seed": 5, "max_tokens": 8, "n": 2}),
        "chat-schema": (
            chat,
            {
                "messages": message,
                "temperature": 0,
                "max_tokens": 40,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": json.loads((o.scratch / "schema.json").read_text())},
                },
            },
        ),
        "regex": (text, {"prompt": "red", "seed": 1, "max_tokens": 20, "guided_regex": "(yes|no), [a-z]{3}"}),
        "choice": (text, {"prompt": "red", "seed": 1, "max_tokens": 20, "guided_choice": ["left", "right"]}),
        "stream": (
            text,
            {"prompt": "red", "seed": 7, "max_tokens": 24, "stream": True, "stream_options": {"include_usage": True}},
        ),
        "stream-chat": (chat, {"messages": message, "seed": 5, "max_tokens": 24, "stream": True, "n": 2}),
    }
    # Turns drafting off: under a grammar the number of drafted tokens depends on when other threads finish its masks.
    for name in ("chat-schema", "regex", "choice"):
        requests[name][1]["speculative"] = False
    for name, (path, body) in requests.items():
        server.ask(name, "POST", path, {"model": "tiny", **body})
    bad = {
        "no-json": b"{",
        "no-prompt": {},
        "wrong-type": {"prompt": 5},
        "unknown-model": {"model": "gpt", "prompt": "x"},
        "temperature": {"prompt": "x", "temperature": 3},
        "n": {"prompt": "x", "n": 99},
        "too-long": {"prompt": "x" * 400},
        "bad-regex": {"prompt": "x", "guided_regex": "("},
        "token": {"prompt": [VOCAB + 5]},
        "no-token": {"prompt": "x", "guided_choice": ["e"], "bad_words": ["e"]},
        "logprobs": {"prompt": "x", "logprobs": 21},
        "two-grammars": {"prompt": "x", "guided_regex": "a", "guided_choice": ["b"]},
        "top-p": {"prompt": "x", "top_p": 0},
        "stop": {"prompt": "x", "stop": [""] * 17},
        "not-offered": {"prompt": "x", "use_beam_search": True},
        "min-tokens": {"prompt": "x", "min_tokens": 17},
    }
    for name, body in bad.items():
        server.ask(f"bad-{name}", "POST", text, body)
    server.ask("bad-chat", "POST", chat, {"messages": [{"role": "wizard", "content": "x"}]})
    server.ask("bad-method", "PUT", text, {})
    server.ask("bad-host", "GET", "/v1/models", headers={"Host": "elsewhere.example"})
    o.page = server.ask("metrics-page", "GET", "/metrics")
    server.unix("admin-none", "GET", "/admin/draft")
    server.unix("admin-drop-nothing", "POST", "/admin/draft", {"action": "drop"})
    server.unix("admin-refused", "POST", "/admin/draft", {"action": "load", "draft": "nowhere"})
    server.unix("admin-load", "POST", "/admin/draft", {"action": "load", "draft": str(o.scratch / "other"), "score": 1})
    server.ask("greedy-scored", "POST", text, {"prompt": "red", "temperature": 0, "max_tokens": 24})
    server.unix("admin-canary", "GET", "/admin/draft")
    server.unix("admin-promote", "POST", "/admin/draft", {"action": "promote"})
    server.ask("greedy-promoted", "POST", text, {"prompt": "red", "temperature": 0, "max_tokens": 24})
    server.ask("metrics-after", "GET", "/metrics")
    o.run_json(
        "data-regenerate",
        f"data regenerate data --target http://127.0.0.1:{server.port}/v1 --target-files target --out data-own "
        "--concurrency 1 --max-tokens 8 --seed 3 -q",
    )
    o.keep_tree("data-own", "data-own")
    server.stop()
    o.keep_tree("serve-recorded", "recorded", omit=[r"\.lock"])
    o.keep("serve-acceptance.jsonl", (o.scratch / "acceptance.jsonl").read_text())
    (o.scratch / "keys").write_text("secret-key-1 team-a\n")
    (o.scratch / "keys").chmod(0o600)
    server = Server(
        o,
        "serve-block-tree",
        "--target target --draft other --tree 2,1 --verify block --k 2 --api-key-file keys --max-batch 2",
    )
    server.ask("key-none", "GET", "/v1/models")
    server.ask("key-wrong", "GET", "/v1/models", headers={"Authorization": "Bearer x"})
    server.ask("key-right", "GET", "/v1/models", headers={"Authorization": "Bearer secret-key-1"})
    server.ask(
        "tree-greedy",
        "POST",
        text,
        {"prompt": "red green", "temperature": 0, "max_tokens": 24},
        {"Authorization": "Bearer secret-key-1"},
    )
    server.ask("tree-metrics", "GET", "/metrics", headers={"Authorization": "Bearer secret-key-1"})
    server.stop()
    o.run("serve-error-port", "serve --target target --port 99999")
    o.run("serve-error-host", "serve --target target --host 0.0.0.0")
    o.run("serve-error-package", "serve store:nothing")
