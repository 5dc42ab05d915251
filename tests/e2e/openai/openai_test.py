"""Tests the real server with the OpenAI Python client: models, chat, completions, streams, seeds, every class of error,
and drain."""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import pydantic  # noqa: E402
from openai_server import Server, openai  # noqa: E402
from specdec_run import SHARED, expect, need_shared, run, run_json  # noqa: E402

need_shared("data/models/stories260K", "data/models/llama2xs-279K")
target, draft = SHARED / "data/models/stories260K", SHARED / "data/models/llama2xs-279K"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{% if "
    "add_generation_prompt %}assistant:{% endif %}"
)


def fails(kind, call, status, param=None, code=None):
    try:
        call()
    except kind as error:
        body = error.body or {}
        good = error.status_code == status and body.get("param") == param and (code is None or body.get("code") == code)
        expect(
            good and all(word not in json.dumps(body) for word in ("0x", "/home", "/tmp", "std::")),
            f"{kind.__name__} {status} {param or code or ''}",
        )
        return error
    except Exception as other:  # noqa: BLE001
        expect(False, f"{kind.__name__} expected, got {type(other).__name__}: {other}")
    expect(False, f"{kind.__name__} expected, but the call succeeded")


def check_answers(server, name):
    client = server.client()
    models = client.models.list().data
    expect(
        [m.id for m in models] == [name] and client.models.retrieve(name).id == name,
        "one model is listed and can be retrieved",
    )

    greedy = dict(model=name, prompt="Once upon a time", temperature=0, max_tokens=60)
    _, alone = run_json(
        "generate", "--target", target, "--prompt", "Once upon a time", "--temperature", 0, "--k", 0, "--max-tokens", 60
    )
    reply = client.completions.create(**greedy, extra_body={"return_token_ids": True, "include_metrics": True})
    expect(
        reply.choices[0].text == alone["text"] and reply.choices[0].token_ids == alone["token_ids"],
        "greedy text and ids are those of plain `generate`",
    )
    expect(
        reply.choices[0].finish_reason == "length" and reply.usage.completion_tokens == 60, "finish_reason and usage"
    )
    figures = reply.metrics["speculative_decoding"]
    expect(
        0 < figures["num_accepted_draft_tokens"] < figures["num_draft_tokens"] <= 4 * figures["num_spec_steps"]
        and figures["num_spec_tokens"] == 4
        and figures["mean_acceptance_length"] > 1
        and sum(figures["acceptance_histogram"]) == figures["num_spec_steps"],
        f"speculation figures: {figures}",
    )

    sampled = dict(
        model=name,
        prompt="Lily had a",
        temperature=1,
        top_p=0.9,
        max_tokens=40,
        seed=7,
        extra_body={"top_k": 50, "min_p": 0.01},
    )
    first = client.completions.create(**sampled).choices[0].text
    expect(first == client.completions.create(**sampled).choices[0].text, "the same seed gives the same text")
    expect(
        first != client.completions.create(**{**sampled, "seed": 8}).choices[0].text, "another seed gives another text"
    )
    several = client.completions.create(**sampled, n=3)
    expect(
        [c.index for c in several.choices] == [0, 1, 2]
        and several.choices[0].text == first
        and several.choices[1].text != first,
        "n=3",
    )
    both = client.completions.create(**{**sampled, "prompt": ["Lily had a", "The dog"]})
    expect(
        both.choices[0].text == first and len(both.choices) == 2,
        "a list of prompts: each is answered as if it were alone",
    )

    results = [None] * 8

    def ask(i):
        results[i] = server.client().completions.create(**{**sampled, "seed": 7 if i % 2 else 100 + i}).choices[0].text

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    expect(
        all(results[i] == first for i in range(1, 8, 2)), "concurrent requests with the seed get the same text as alone"
    )

    words = alone["text"].split()
    stop = words[5] + " " + words[6]
    cut = client.completions.create(**greedy, stop=[stop, "never there"]).choices[0]
    expect(
        cut.text == alone["text"][: alone["text"].index(stop)] and cut.finish_reason == "stop", f"stop string {stop!r}"
    )


def check_chat_and_streams(server, name):
    client = server.client()
    chat = dict(
        model=name,
        messages=[
            {"role": "system", "content": "Tell stories."},
            {"role": "user", "content": [{"type": "text", "text": "A cat"}]},
        ],
        temperature=0,
        max_completion_tokens=30,
    )
    whole = client.chat.completions.create(**chat)
    expect(
        whole.choices[0].message.role == "assistant"
        and whole.choices[0].message.content
        and whole.usage.completion_tokens <= 30,
        "chat",
    )
    chunks = list(client.chat.completions.create(**chat, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    expect(
        text == whole.choices[0].message.content and chunks[0].choices[0].delta.role == "assistant",
        "a streamed chat has the same text",
    )
    expect(
        chunks[-1].usage == whole.usage
        and not chunks[-1].choices
        and chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason,
        "usage in the last chunk",
    )
    pieces = list(client.completions.create(model=name, prompt="One day", temperature=0, max_tokens=200, stream=True))
    plain = client.completions.create(model=name, prompt="One day", temperature=0, max_tokens=200)
    expect(
        "".join(c.choices[0].text for c in pieces) == plain.choices[0].text, "a streamed completion has the same text"
    )
    # The number of tokens per event depends on how fast the client reads.
    expect(len(pieces) > 2, "and comes in pieces")
    with client.completions.create(
        model=name, prompt="Once", max_tokens=400, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
    expect(
        client.completions.create(model=name, prompt="x", max_tokens=1).usage.completion_tokens == 1,
        "a stream left early does no harm",
    )


def check_sampling_options(server, name):
    client = server.client()
    ask = lambda **more: client.completions.create(
        **{"model": name, "prompt": "Once upon a time", "temperature": 0, "max_tokens": 60, **more}
    )
    ids = lambda reply: reply.choices[0].token_ids
    plain = ask(extra_body={"return_token_ids": True})
    opted_out = ask(extra_body={"return_token_ids": True, "speculative": False, "include_metrics": True})
    expect(
        ids(opted_out) == ids(plain) and opted_out.metrics["speculative_decoding"]["num_draft_tokens"] == 0,
        "speculative: false gives the same text without the draft",
    )

    Pet = pydantic.create_model("Pet", kind=(Literal["cat", "dog"], ...), good=(bool, ...))
    asked = [{"role": "user", "content": "x"}]
    pet = client.chat.completions.parse(model=name, messages=asked, response_format=Pet, max_completion_tokens=300)
    expect(isinstance(pet.choices[0].message.parsed, Pet), "parse() returns the object")

    first = ids(plain)[4]
    banned = ask(logit_bias={str(first): -100}, extra_body={"return_token_ids": True})
    expect(first not in ids(banned), "logit_bias -100 keeps a greedy token out")
    repeats = lambda reply: len(ids(reply)) - len(set(ids(reply)))
    for option in (
        {"presence_penalty": 2},
        {"frequency_penalty": 2},
        {"extra_body": {"repetition_penalty": 1.8, "return_token_ids": True}},
    ):
        speculated = ask(**{"extra_body": {"return_token_ids": True}, **option})
        alone = ask(
            **{**option, "extra_body": {**option.get("extra_body", {}), "return_token_ids": True, "speculative": False}}
        )
        expect(
            ids(speculated) == ids(alone) and repeats(speculated) < repeats(plain),
            f"{option}: less repetition, and the text without the draft",
        )
    word = plain.choices[0].text.split()[2]
    expect(word not in ask(extra_body={"bad_words": [word]}).choices[0].text, f"bad word {word!r}")

    scored = ask(logprobs=3, echo=True, max_tokens=20)
    figures, text = scored.choices[0].logprobs, scored.choices[0].text
    expect(
        text.startswith("Once upon a time")
        and figures.token_logprobs[0] is None
        and all(x <= 0 for x in figures.token_logprobs[1:])
        and len(figures.tokens) == scored.usage.total_tokens
        and all(len(t) in (3, 4) for t in figures.top_logprobs[1:]),
        "echo with logprobs",
    )
    prompt_only = ask(logprobs=0, echo=True, max_tokens=0).choices[0]
    n = scored.usage.prompt_tokens
    expect(
        prompt_only.text == "Once upon a time"
        and all(
            abs(a - b) < 1e-3 for a, b in zip(prompt_only.logprobs.token_logprobs[1:], figures.token_logprobs[1:n])
        ),
        "max_tokens 0 scores the prompt alone",
    )
    same = ask(logprobs=3, max_tokens=20, extra_body={"speculative": False}).choices[0].logprobs
    expect(
        all(abs(a - b) < 1e-3 for a, b in zip(same.token_logprobs, figures.token_logprobs[n:])),
        "logprobs are the target's, with and without the draft",
    )

    chat = dict(
        model=name,
        messages=[{"role": "user", "content": "A cat"}],
        temperature=0.8,
        seed=3,
        max_completion_tokens=25,
        logprobs=True,
        top_logprobs=2,
    )
    whole = client.chat.completions.create(**chat, n=2)
    entries = whole.choices[0].logprobs.content
    expect(
        len(whole.choices) == 2
        and all(len(e.top_logprobs) == 2 and e.top_logprobs[0].logprob >= e.logprob for e in entries),
        "chat logprobs",
    )
    spelt = b"".join(bytes(e.bytes) for e in entries if e.token != "</s>").decode()
    expect(spelt.strip() == whole.choices[0].message.content.strip(), "their bytes join to the text")
    chunks = client.chat.completions.create(**chat, stream=True)
    streamed = [e for c in chunks if c.choices and c.choices[0].logprobs for e in c.choices[0].logprobs.content]
    expect([e.logprob for e in streamed] == [e.logprob for e in entries], "a stream has the same logprobs")

    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "good": {"type": "boolean"}},
        "required": ["name", "good"],
        "additionalProperties": False,
    }
    for seed in range(6):
        reply = client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": "x"}],
            seed=seed,
            max_completion_tokens=300,
            response_format={"type": "json_schema", "json_schema": {"name": "pet", "schema": schema, "strict": True}},
        ).choices[0]
        value = json.loads(reply.message.content)
        expect(
            list(value) == ["name", "good"]
            and len(value["name"]) <= 6
            and isinstance(value["good"], bool)
            and reply.finish_reason == "stop",
            f"JSON of the schema: {value}",
        )
    for speculative in (True, False):
        reply = ask(
            temperature=1,
            seed=5,
            extra_body={"guided_regex": "(cat|dog)( and (cat|dog)){2}", "speculative": speculative},
        ).choices[0]
        expect(
            re.fullmatch("(cat|dog)( and (cat|dog)){2}", reply.text) and reply.finish_reason == "stop",
            f"a regular expression: {reply.text!r}",
        )
    expect(ask(temperature=1, extra_body={"guided_choice": ["yes", "no"]}).choices[0].text in ("yes", "no"), "a choice")


def check_where_answers_end(server, name):
    client = server.client()

    def ask(speculative=True, prompt="Once upon a time", max_tokens=60, **extra):
        extra.update(return_token_ids=True, speculative=speculative)
        return client.completions.create(
            model=name, prompt=prompt, temperature=0, max_tokens=max_tokens, extra_body=extra
        )

    plain = ask().choices[0]
    ids = plain.token_ids
    stop = next(id for i, id in enumerate(ids) if i >= 6 and id not in ids[:i])
    end = ids.index(stop)
    for speculative in (True, False):
        cut = ask(speculative, stop_token_ids=[stop]).choices[0]
        expect(
            cut.token_ids == ids[: end + 1]
            and cut.text == ask(max_tokens=end).choices[0].text
            and cut.finish_reason == "stop",
            f"stop_token_ids [{stop}]: the answer ends before token {end}",
        )
        shown = ask(speculative, stop_token_ids=[stop], include_stop_str_in_output=True).choices[0]
        expect(
            shown.token_ids == cut.token_ids and shown.text == ask(max_tokens=end + 1).choices[0].text,
            "include_stop_str_in_output shows the token",
        )
        late = ask(speculative, stop_token_ids=[ids[0], stop], min_tokens=20).choices[0]
        expect(
            len(late.token_ids) >= 20 and not {ids[0], stop} & set(late.token_ids[:20]),
            f"min_tokens 20: {len(late.token_ids)} tokens, and none that ends the answer among the first 20",
        )
        some = sorted(set(ids))[::2]
        few = ask(speculative, allowed_token_ids=some).choices[0]
        expect(set(few.token_ids) <= set(some), f"allowed_token_ids: {len(set(few.token_ids))} of {len(some)} used")
    for rules in ({"stop_token_ids": [stop], "min_tokens": 20}, {"allowed_token_ids": some}):
        expect(
            ask(False, **rules).choices[0].token_ids == ask(True, **rules).choices[0].token_ids,
            f"with and without the draft the same: {', '.join(rules)}",
        )
    chat = client.chat.completions.create(
        model=name,
        messages=[{"role": "user", "content": "A cat"}],
        max_tokens=30,
        max_completion_tokens=5,
        store=True,
        parallel_tool_calls=False,
        service_tier="auto",
        extra_body={"ignore_eos": True},
    )
    expect(
        chat.usage.completion_tokens == 5, "max_completion_tokens supersedes max_tokens; harmless fields are ignored"
    )

    listed = server.post("/tokenize", {"prompt": "Once upon a time", "return_token_strs": True})
    asked = client.completions.create(model=name, prompt="Once upon a time", max_tokens=1).usage.prompt_tokens
    expect(
        listed["count"] == len(listed["tokens"]) == len(listed["token_strs"]) == asked
        and listed["max_model_len"] == 512,
        f"/tokenize counts {asked} tokens, as the server does",
    )
    back = server.post("/detokenize", {"tokens": listed["tokens"]})["prompt"]
    expect(back.endswith("Once upon a time"), f"/detokenize: {back!r}")
    talk = [{"role": "user", "content": "A cat"}]
    rendered = server.post("/tokenize", {"model": name, "messages": talk})
    expect(rendered["count"] == chat.usage.prompt_tokens, "/tokenize renders a conversation as a chat request does")
    shorter = server.post("/tokenize", {"messages": talk, "add_generation_prompt": False})
    expect(
        rendered["tokens"][: shorter["count"]] == shorter["tokens"] and shorter["count"] < rendered["count"],
        "add_generation_prompt",
    )
    truncated = ask(prompt=" word" * 600, max_tokens=8, truncate_prompt_tokens=-1)
    expect(truncated.usage.prompt_tokens == 504, "truncate_prompt_tokens -1: as many as fit")
    expect(ask(max_tokens=8, truncate_prompt_tokens=3).usage.prompt_tokens == 3, "truncate_prompt_tokens 3")


def check_errors(server, name):
    client = server.client()
    ask = lambda **more: lambda: client.completions.create(**{"model": name, "prompt": "x", "max_tokens": 2, **more})
    bad = openai.BadRequestError
    fails(bad, ask(temperature=3), 400, "temperature")
    fails(bad, ask(n=9), 400, "n")
    fails(bad, ask(logprobs=21), 400, "logprobs")
    fails(bad, ask(logit_bias={"512": 1}), 400, "logit_bias")
    fails(bad, ask(presence_penalty=3), 400, "presence_penalty")
    fails(bad, ask(suffix="x"), 400, "suffix")
    fails(bad, ask(extra_body={"guided_regex": "("}), 400, "guided_regex")
    fails(bad, ask(extra_body={"bad_words": [""]}), 400, "bad_words")
    for field, value in {
        "use_beam_search": True,
        "length_penalty": 1.2,
        "prompt_logprobs": 0,
        "skip_special_tokens": False,
        "priority": 1,
        "logits_processors": ["x"],
        "lora_request": {"lora_name": "x"},
        "lora": "x",
    }.items():
        fails(bad, ask(extra_body={field: value}), 400, field, "unsupported_parameter")
    fails(bad, ask(extra_body={"min_tokens": 3}), 400, "min_tokens")
    fails(bad, ask(extra_body={"stop_token_ids": [512]}), 400, "stop_token_ids")
    fails(bad, ask(extra_body={"allowed_token_ids": []}), 400, "allowed_token_ids")
    fails(bad, ask(extra_body={"truncate_prompt_tokens": 511}), 400, "truncate_prompt_tokens")
    # Only the end-of-text token is allowed, but min_tokens forbids it at the start, so no token is left.
    end = ask(extra_body={"allowed_token_ids": [2], "min_tokens": 1})
    fails(bad, end, 400, None, "no_token_left")
    fails(bad, ask(prompt=[1, 512]), 400, "prompt")
    fails(bad, ask(prompt="word " * 600), 400, "prompt")
    fails(bad, ask(max_tokens=600), 400, "max_tokens")
    fails(
        bad,
        lambda: client.chat.completions.create(
            model=name,
            messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}],
        ),
        400,
        "messages[0].content",
    )
    fails(openai.NotFoundError, ask(model="other"), 404, "model", "model_not_found")
    fails(openai.NotFoundError, lambda: client.models.retrieve("other"), 404, "model", "model_not_found")
    fails(openai.NotFoundError, lambda: client.embeddings.create(model=name, input="x"), 404, None, "unknown_url")
    fails(openai.NotFoundError, lambda: client.responses.create(model=name, input="x"), 404, None, "unknown_url")


def check_overload(name, directory):
    """Checks that one request runs, one waits and the next is refused, and that SIGTERM lets the running one finish."""
    server = Server("--target", directory, "--max-batch", 1, "--queue-limit", 1)
    client = server.client()
    slow = dict(model=name, prompt="Once", max_tokens=500, extra_body={"ignore_eos": True}, stream=True)
    runs = iter(client.completions.create(**slow))
    next(runs)
    seen = []

    def flood():
        try:
            seen.append(len(list(server.client().completions.create(**slow))))
        except openai.RateLimitError as error:
            seen.append(error)

    threads = [threading.Thread(target=flood) for _ in range(12)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    refused = [e for e in seen if not isinstance(e, int)]
    expect(
        refused
        and len(refused) < 12
        and all(e.status_code == 429 and e.response.headers["retry-after"] for e in refused),
        f"{len(refused)} of 12 requests at once are told 429 with Retry-After",
    )
    last = iter(client.completions.create(**slow))
    next(last)
    code = []
    stopping = threading.Thread(target=lambda: code.append(server.stop()))
    stopping.start()
    rest = list(last)
    stopping.join()
    expect(
        rest[-1].choices[0].finish_reason == "length" and code == [0], "SIGTERM: the running answer is finished, exit 0"
    )


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    talker = work / "talker"
    shutil.copytree(target, talker)
    (talker / "chat_template.jinja").write_text(TEMPLATE)

    server = Server(
        "--target",
        talker,
        "--draft",
        draft,
        "--k",
        4,
        "--record",
        work / "traffic",
        "--acceptance-log",
        work / "acceptance.jsonl",
        "--admin-socket",
        work / "admin.sock",
    )
    expect(any(line.startswith("memory: ") for line in server.lines), "the memory plan is printed first")
    expect(json.loads(server.get("/ready"))["status"] == "ready", "ready")
    check_answers(server, "talker")
    check_chat_and_streams(server, "talker")
    check_sampling_options(server, "talker")
    check_where_answers_end(server, "talker")
    check_errors(server, "talker")
    metrics = server.get("/metrics")
    value = lambda name: float(re.search(rf"^{re.escape(name)} (\S+)$", metrics, re.M).group(1))
    reached, accepted, overlap = (
        value(f'specdec:spec_decode_{n}_per_pos_total{{position="0"}}')
        for n in ("num_reached_tokens", "num_accepted_tokens", "overlap_sum")
    )
    expect(
        reached == value("specdec:spec_decode_num_drafts_total") and 0 < accepted < reached and 0 < overlap < reached,
        "counters by position",
    )
    expect(
        all(value(f'specdec:stage_seconds_total{{stage="{s}"}}') > 0 for s in ("prompt", "draft", "verify", "sample")),
        "stage seconds",
    )
    expect(re.search(r'specdec:info\{draft="[0-9a-f]{64}",package="",target="[0-9a-f]{64}"\} 1', metrics), "info")
    expect("<title>specdec</title>" in server.get("/dashboard"), "dashboard")
    run(
        "serve", "--target", target, "--port", re.search(r":(\d+)$", server.url).group(1), code=74, last_line=["--port"]
    )
    done = (
        subprocess.run(
            ["curl", "-s", "--unix-socket", str(work / "admin.sock"), "-X", "POST", "http://admin/admin/drain"],
            capture_output=True,
            text=True,
        )
        if shutil.which("curl")
        else None
    )
    if done:
        expect(
            json.loads(done.stdout)["status"] == "draining" and server.process.wait(timeout=60) == 0,
            "drained through the admin socket, exit 0",
        )
    else:
        expect(server.stop() == 0, "SIGTERM: drained, exit 0")
    files = list((work / "traffic").glob("traffic-*.jsonl"))
    records = [json.loads(line) for f in files for line in f.read_text().splitlines()]
    expect(
        len(records) > 20
        and not list((work / "traffic").glob("*.partial"))
        and all(r["schema"] == "specdec.traffic/1" for r in records),
        "traffic records are published",
    )
    expect(
        any(r.get("messages", [{}])[-1].get("role") == "assistant" for r in records if "messages" in r),
        "chats end with the answer",
    )
    expect(len((work / "acceptance.jsonl").read_text().splitlines()) == len(records), "one acceptance record an answer")
    run("data", "ingest", *files, "--target", talker, "--out", work / "shards")
    expect((work / "shards/index.json").exists(), "data ingest reads what serve wrote")

    (work / "keys").write_text("sk-right-key-1 alice\n")
    server = Server("--target", target, "--host", "0.0.0.0", "--api-key-file", work / "keys")
    server.url = server.url.replace("0.0.0.0", "127.0.0.1")
    fails(
        openai.AuthenticationError, lambda: server.client("sk-wrong-key-1").models.list(), 401, None, "invalid_api_key"
    )
    expect(
        server.client("sk-right-key-1").models.list().data[0].id == target.name,
        "the right key is let in; the name is the directory's",
    )
    fails(
        openai.BadRequestError,
        lambda: server.client("sk-right-key-1").chat.completions.create(
            model=target.name, messages=[{"role": "user", "content": "x"}]
        ),
        400,
        "messages",
    )
    expect(server.stop() == 0, "a bare target is served and drained")
    expect(not any("sk-right-key-1" in line for line in server.lines), "no key in the log")
    check_overload("talker", talker)
    run("serve", "--target", target, "--host", "0.0.0.0", "--port", 0, code=2, last_line=["--api-key-file"])
    run("serve", code=2)
    run("serve", "--target", target, "--k", 3, "--port", 0, code=2, last_line=["--draft"])
    run("serve", work, "--port", 0, code=7)
