"""Calls functions through the real server with the OpenAI Python client. Covers calls that the model makes by itself,
streamed and not, in the formats of four model families. Also covers forced calls, a history that contains calls,
reasoning, and recorded traffic."""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from openai_server import Server, openai  # noqa: E402
from scripted_model import write_scripted_model  # noqa: E402
from specdec_run import SHARED, expect, run  # noqa: E402

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Says how it is.",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["zone"],
        },
    },
}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}

# A chat template that prints its whole input and, at the end, a token that selects the script of the scripted model.
TEMPLATE = (
    "{% if tools %}SHOWN{% for t in tools %} {{ t.function.name }}{% endfor %}\n{% endif %}{% for m in messages %}"
    "{{ '<' + (script or 'a') + '>' if m.role == 'assistant' else m.role + ': ' }}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALLS{{ c.function.name }}"
    "{{ c.function.arguments.zone }}{% endfor %}{{ m.reasoning_content or '' }}\n{% endfor %}"
    "{% if add_generation_prompt %}{{ '<' + (script or 'a') + '>' }}{% endif %}"
)
# Maps a format of function calls to two scripts: "a" is a sentence and two calls, "b" is one call alone.
FORMATS = {
    "hermes": {
        "marker": "<tool_call>",
        "special": [],
        "a": [
            "I look.\n",
            "<tool_call>",
            '\n{"name": "weather", ',
            '"arguments": {"zone": "no',
            'rth", "days": 2}}',
            "\n</tool_call>\n",
            '<tool_call>{"name": "add", "arguments": {}}',
            "</tool_call>",
        ],
        "b": ['<tool_call>\n{"name": "add"}', "\n</tool_call>"],
    },
    "qwen3_coder": {
        "marker": "<tool_call>\n<function=",
        "special": [],
        "a": [
            "I look.\n\n",
            "<tool_call>\n<function=weather>\n",
            "<parameter=zone>\nno",
            "rth\n</parameter>\n",
            "<parameter=days>\n2\n</parameter>",
            "\n</function>\n</tool_call>",
            "\n<tool_call>\n<function=add>\n</function>\n</tool_call>",
        ],
        "b": ["<function=add>\n", "</function>"],
    },
    "llama3_json": {
        "marker": "<|python_tag|>",
        "special": ["<|python_tag|>"],
        "a": [
            "I look.",
            "<|python_tag|>",
            '{"name": "weather", "parameters": ',
            '{"zone": "north", "days": 2}}',
            '; {"name": "add", "parameters": {}}',
        ],
        "b": ['{"name": "add", ', '"parameters": {}}'],
    },
    "mistral": {
        "marker": "[TOOL_CALLS]",
        "special": ["[TOOL_CALLS]", "[ARGS]"],
        "a": [
            "I look.",
            "[TOOL_CALLS]",
            '[{"name": "weather", "arguments": {"zone": "no',
            'rth", "days": 2}}, {"name": "add", ',
            '"arguments": {}}]',
        ],
        "b": ["[TOOL_CALLS]add", "[ARGS]", "{}"],
    },
}
HISTORY = [
    {"role": "user", "content": "Rain?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "HM",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"zone": "east"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "dry"},
]


def streamed(client, **arguments):
    """Returns the message and finish_reason of a streamed answer, joined from its pieces as a client does."""
    message, calls, reason, pieces = {"content": "", "reasoning_content": ""}, {}, None, 0
    for chunk in client.chat.completions.create(stream=True, **arguments):
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        message["content"] += choice.delta.content or ""
        message["reasoning_content"] += getattr(choice.delta, "reasoning_content", None) or ""
        for piece in choice.delta.tool_calls or []:
            pieces += 1
            call = calls.setdefault(piece.index, {"name": "", "arguments": "", "id": ""})
            call["id"] += piece.id or ""
            call["name"] += piece.function.name or ""
            call["arguments"] += piece.function.arguments or ""
    return message, [calls[i] for i in sorted(calls)], reason, pieces


def plain(message):
    return [{"name": c.function.name, "arguments": c.function.arguments, "id": c.id} for c in message.tool_calls or []]


def check_format(server, name):
    client = server.client()
    ask = dict(model="scripted", messages=[{"role": "user", "content": "Rain?"}], temperature=0)
    tools = dict(ask, tools=[WEATHER, ADD])
    reply = client.chat.completions.create(**tools).choices[0]
    calls = plain(reply.message)
    expect(
        [(c["name"], json.loads(c["arguments"])) for c in calls]
        == [("weather", {"zone": "north", "days": 2}), ("add", {})]
        and reply.message.content == "I look."
        and reply.finish_reason == "tool_calls",
        f"{name}: two calls after a sentence",
    )
    expect(len({c["id"] for c in calls}) == 2 and (name != "mistral" or len(calls[0]["id"]) == 9), f"{name}: ids")
    message, pieces, reason, count = streamed(client, **tools)
    ids = lambda found: [{k: v for k, v in call.items() if k != "id"} for call in found]
    expect(
        ids(pieces) == ids(calls) and message["content"] == "I look." and reason == "tool_calls" and count >= 2,
        f"{name}: the same, streamed in {count} pieces",
    )
    alone = client.chat.completions.create(**tools, extra_body={"chat_template_kwargs": {"script": "b"}}).choices[0]
    expect(
        [c["name"] for c in plain(alone.message)] == ["add"] and alone.message.content is None,
        f"{name}: one call and no content; chat_template_kwargs reach the template",
    )
    first = client.chat.completions.create(**tools, parallel_tool_calls=False).choices[0].message
    expect([c["name"] for c in plain(first)] == ["weather"], f"{name}: parallel_tool_calls false")
    none = client.chat.completions.create(**tools, tool_choice="none").choices[0]
    expect(
        not none.message.tool_calls and none.finish_reason == "stop" and "weather" in none.message.content,
        f"{name}: tool_choice none leaves the text as it is",
    )
    same = client.chat.completions.create(**tools, extra_body={"speculative": False}).choices[0].message
    expect(ids(plain(same)) == ids(calls), f"{name}: the same without the draft")
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        forced = client.chat.completions.create(
            **dict(tools, tool_choice=choice, temperature=1, seed=3, max_tokens=900)
        )
        alone = client.chat.completions.create(
            **dict(tools, tool_choice=choice, temperature=0, max_tokens=900), extra_body={"speculative": False}
        )
        greedy = client.chat.completions.create(**dict(tools, tool_choice=choice, temperature=0, max_tokens=900))
        expect(
            (len(plain(forced.choices[0].message)) == 1 or (name, choice) == ("mistral", "required"))
            and forced.choices[0].message.content is None,
            f"{name}: a forced call, {choice if choice == 'required' else 'named'}",
        )
        expect(
            ids(plain(alone.choices[0].message)) == ids(plain(greedy.choices[0].message)),
            f"{name}: forced and greedy, the same with and without the draft",
        )


def check_hermes(server):
    client = server.client()
    ask = dict(model="scripted", temperature=0)
    count = client.chat.completions.create(**ask, messages=HISTORY, tools=[WEATHER]).usage.prompt_tokens
    shown = "SHOWN weatheruser: Rain?\nXCALLSweathereastHM\ntool: dry\n"
    expect(
        count == len(shown) + 1,
        f"{count} of {len(shown) + 1} tokens: the template gets tools, calls with arguments as objects, and thoughts",
    )
    think = dict(ask, messages=[{"role": "user", "content": "x"}], extra_body={"chat_template_kwargs": {"script": "t"}})
    whole = client.chat.completions.create(**think).choices[0].message
    expect(whole.content == "Yes." and whole.reasoning_content == "Hm.", "thoughts are apart from the content")
    message, _, _, _ = streamed(client, **think)
    expect(message == {"content": "Yes.", "reasoning_content": "Hm."}, "the same, streamed")
    for body, param in (
        ({"tools": [WEATHER, WEATHER]}, "tools[1].function.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 7}}}]}, None),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": 7}}}],
                "tool_choice": "required",
            },
            "tools",
        ),
    ):
        try:
            client.chat.completions.create(**ask, max_tokens=4, messages=HISTORY[:1], **body)
            expect(param is None, f"accepted: {body}")
        except openai.BadRequestError as error:
            expect(error.body["param"] == param, f"refused by name: {param}, {error.body['message'][:80]}")


def check_forced(server, answers):
    """Forces a model of children's stories, which was not trained on functions, to call functions, and parses every
    answer."""
    client = server.client()
    tools = [
        {
            "type": "function",
            "function": {
                "name": "paint",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "colour": {"$ref": "#/$defs/colour"},
                        "times": {"type": "integer", "minimum": 0, "maximum": 99},
                        "note": {"type": "string", "maxLength": 12},
                    },
                    "required": ["colour", "times"],
                    "additionalProperties": False,
                    "$defs": {"colour": {"enum": ["red", "green", "blue"]}},
                },
            },
        },
        {"type": "function", "function": {"name": "wait"}},
    ]
    ask = dict(
        model="stories260K", messages=[{"role": "user", "content": "Once"}], tools=tools, temperature=1, max_tokens=250
    )
    good, names = 0, set()
    for seed in range(answers // 8):
        for choice in client.chat.completions.create(**ask, tool_choice="required", n=8, seed=seed).choices:
            call = choice.message.tool_calls[0].function
            arguments = json.loads(call.arguments)
            names.add(call.name)
            good += choice.finish_reason == "tool_calls" and (
                arguments == {}
                if call.name == "wait"
                else arguments["colour"] in ("red", "green", "blue") and 0 <= arguments["times"] <= 99
            )
    expect(
        good == answers and names == {"paint", "wait"}, f"{good} of {answers} forced calls parse and fit their schema"
    )


with tempfile.TemporaryDirectory() as folder:
    work = Path(folder)
    for name, format in FORMATS.items():
        scripts = {"a": format["a"], "b": format["b"]}
        if name == "hermes":
            scripts["t"] = ["<think>", "\nHm.\n", "</think>", "\n\nYes."]
        model = work / name / "scripted"
        model.parent.mkdir()
        marker = "{# " + format["marker"] + " </think> #}"
        write_scripted_model(model, scripts, TEMPLATE + marker, special=[*format["special"], "<think>", "</think>"])
        record = ["--record", work / name / "traffic"]
        server = Server("--target", model, "--draft", model, "--k", 3, *record)
        check_format(server, name)
        if name == "hermes":
            check_hermes(server)
        expect(server.stop() == 0, "drained")
        rows = [
            json.loads(line)
            for file in (work / name / "traffic").glob("traffic-*.jsonl")
            for line in file.read_text().splitlines()
        ]
        called = [r for r in rows if "tools" in r]
        expect(
            called and any("".join(format["a"]) == r["messages"][-1]["content"] for r in called),
            f"{name}: the record has the tools, and the answer as the model wrote it",
        )
        run("data", "ingest", work / name / "traffic", "--target", model, "--out", work / name / "shards")
        expect((work / name / "shards/index.json").exists(), f"{name}: data ingest reads the records")
    server = Server("--target", work / "hermes/scripted", "--tool-call-parser", "none", "--no-reasoning-split")
    try:
        server.client().chat.completions.create(model="scripted", messages=HISTORY[:1], tools=[WEATHER])
        expect(False, "tools without a parser are refused")
    except openai.BadRequestError as error:
        expect(error.body["param"] == "tools", "tools without a parser are refused")
    server.stop()
    if not (SHARED / "data/models/stories260K").exists():
        print("SKIPPED: forced calls of a real model (SPECDEC_SHARED names the folder of real models)")
        sys.exit(0)
    talker = work / "stories260K"
    talker.mkdir()
    for file in (SHARED / "data/models/stories260K").iterdir():
        (talker / file.name).symlink_to(file)
    (talker / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}{# tools <tool_call> #}"
    )
    server = Server("--target", talker, "--draft", SHARED / "data/models/llama2xs-279K", "--k", 4)
    check_forced(server, 1000)
    server.stop()
