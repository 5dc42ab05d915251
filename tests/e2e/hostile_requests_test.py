"""Sends hostile requests to the running server, which also renders a model's hostile chat template. Requests that ended
earlier versions of the server must get 400 with the name of their field. The server must survive and answer other
requests as before. Its own memory must not grow with the size of what clients request."""

import atexit
import http.client
import json
import resource
import signal
import subprocess
import tempfile
import threading
from pathlib import Path

from specdec_run import SPECDEC, expect
from tiny_model import CHAT_TEMPLATE, write_tiny_model

work = Path(tempfile.mkdtemp())
DOUBLINGS = "{% set s = 'aaaaaaaa' %}" + "{% set s = s ~ s %}" * 60 + "{{ s | length }}"
write_tiny_model(work / "target", layers=1, seed=1)
config = json.loads((work / "target/tokenizer_config.json").read_text())
config["chat_template"] = "{% if messages|length > 65 %}" + DOUBLINGS + "{% endif %}" + CHAT_TEMPLATE
(work / "target/tokenizer_config.json").write_text(json.dumps(config))


def memory_limit():
    resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))


server = subprocess.Popen(
    [str(SPECDEC), "serve", "--target", str(work / "target"), "--port", "0", "--threads", "1", "--max-batch", "8"],
    stderr=subprocess.PIPE,
    text=True,
    preexec_fn=memory_limit,
)
atexit.register(server.kill)
port = int(next(line for line in server.stderr if "listening on" in line).rsplit(":", 1)[1])
threading.Thread(target=lambda: [None for _ in server.stderr], daemon=True).start()


def ask(path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    data = reply.read()
    connection.close()
    return reply.status, json.loads(data)


def alive(text):
    status, reply = ask("/v1/completions", {"prompt": "ab", "max_tokens": 8, "seed": 7, "ignore_eos": True})
    expect(server.poll() is None and status == 200 and reply["choices"][0]["text"] == control, text)


def refused(what, body, param, path="/v1/completions", times=1):
    for _ in range(times):
        status, reply = ask(
            path, {"prompt": "a", "max_tokens": 4, **body} if path == "/v1/completions" else {"max_tokens": 4, **body}
        )
        if status != 400 or reply["error"]["param"] != param:
            expect(False, f"{what}: {status} {json.dumps(reply)[:300]}")
    alive(f"{what}: 400 names {param}, {times} times, and the server answers as before")


def chain(count, link):
    """Returns a schema with `count` definitions, each of which refers to the next."""

    def to(i):
        return link({"$ref": f"#/$defs/d{i}"})

    return {**to(0), "$defs": {**{f"d{i}": to(i + 1) for i in range(count)}, f"d{count}": {"type": "integer"}}}


control = ask("/v1/completions", {"prompt": "ab", "max_tokens": 8, "seed": 7, "ignore_eos": True})[1]["choices"][0][
    "text"
]

# 1: Schemas and patterns nested so deep that the server's recursion would overflow its stack.
links = {
    "$ref": lambda r: r,
    "anyOf": lambda r: {"anyOf": [r]},
    "allOf": lambda r: {"allOf": [r]},
    "items": lambda r: {"type": "array", "items": r},
    "properties": lambda r: {"properties": {"a": r}},
    "additionalProperties": lambda r: {"additionalProperties": r},
    "prefixItems": lambda r: {"prefixItems": [r]},
}
for name, link in links.items():
    schema = chain(1300, link)
    small = len(json.dumps(schema)) <= 64 << 10
    refused(f"1,300 $defs chained by {name}", {"guided_json": schema}, "guided_json")
    if small and name in ("$ref", "anyOf"):
        refused("… as text", {"guided_json": json.dumps(schema)}, "guided_json")
        refused(
            "… in response_format",
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
            "response_format.json_schema",
        )
        refused("… in structured_outputs", {"structured_outputs": {"json": schema}}, "structured_outputs.json")
        refused(
            "… in a conversation",
            {"messages": [{"role": "user", "content": "a"}], "guided_json": schema},
            "guided_json",
            "/v1/chat/completions",
        )
for count in (100, 400, 500, 508):  # near the limit; each may be answered or refused
    status, reply = ask(
        "/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_json": chain(count, links["anyOf"])}
    )
    expect(status in (200, 400) and server.poll() is None, f"a chain of {count}: {status}")
refused("nested parentheses", {"guided_regex": "(" * 30000 + "a" + ")" * 30000}, "guided_regex")
refused(
    "a pattern of nested parentheses",
    {"guided_json": {"type": "string", "pattern": "(" * 30000 + "a" + ")" * 30000}},
    "guided_json",
)

# Grammars whose compilation would take unlimited time and memory, because the compiler has no limit of its own.
big = {
    "type": "object",
    "properties": {"x": {"type": "object", "properties": {str(i): {"type": "string"} for i in range(1000)}}},
}
defs = {"big": big}
for level in range(4):
    options = [{"type": "object", "properties": {f"k{level}": {"const": i}}} for i in range(40)]
    defs[f"l{level}"] = {"allOf": [{"anyOf": options}, {"$ref": f"#/$defs/{f'l{level - 1}' if level else 'big'}"}]}
refused("intersections without end", {"guided_json": {"$ref": "#/$defs/l3", "$defs": defs}}, "guided_json", times=2)

# 2: Numbers at the limits of float. In an earlier version 32 failures in a row ended the server.
for field, values in {
    "temperature": (1e-40, 5e-324, 1e-310, -1e-40),
    "repetition_penalty": (1e-60, 1e-38, 5e-324, 0.0099),
    "top_p": (1e-40, 5e-324),
}.items():
    for value in values:
        refused(f"{field} {value}", {field: value, "n": 8}, field, times=5)
ends = [
    {"temperature": 1.1754943508222875e-38},
    {"temperature": 1.1754943508222875e-38, "top_p": 1.1754943508222875e-38, "min_p": 0.9999999},
    {"temperature": 1e-30, "top_k": 3},
    {
        "repetition_penalty": 0.01,
        "presence_penalty": 2,
        "frequency_penalty": 2,
        "logit_bias": {str(i): (-1) ** i * 100 for i in range(200)},
    },
    {"repetition_penalty": 0.01, "temperature": 1.1754943508222875e-38, "frequency_penalty": -2},
    {"min_p": 5e-324, "presence_penalty": 5e-324, "frequency_penalty": -5e-324},
]
for body in ends:
    for _ in range(5):
        status, reply = ask("/v1/completions", {"prompt": "abc", "n": 8, "max_tokens": 8, "ignore_eos": True, **body})
        if status != 200:
            expect(False, f"{body}: {status} {reply}")
alive("numbers at the ends of their ranges are arithmetic: 240 answers")


# 3: A hostile chat template that passes the checks at start-up. With 66 messages, the template doubles a string sixty
# times.
def chat(messages):
    return {"messages": [{"role": "user", "content": "a"}] * messages, "max_tokens": 4, "seed": 1}


status, before = ask("/v1/chat/completions", chat(65))
expect(status == 200, "65 messages are answered")
refused(
    "66 messages, where the template doubles a string sixty times",
    chat(66),
    "messages",
    "/v1/chat/completions",
    times=3,
)
status, after = ask("/v1/chat/completions", chat(65))
expect(
    status == 200 and after["choices"][0]["message"] == before["choices"][0]["message"],
    "65 messages are answered as before",
)
peak = int(
    next(
        line for line in Path(f"/proc/{server.pid}/status").read_text().splitlines() if line.startswith("VmHWM")
    ).split()[1]
)
expect(peak < 1 << 20, f"the server held at most {peak >> 10} MiB")

children = [int(c) for c in Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()]
server.send_signal(signal.SIGTERM)
expect(server.wait(60) == 0, "drained")
expect(
    children and not any(Path(f"/proc/{c}").exists() for c in children),
    f"the {len(children)} processes that hold foreign work went with it",
)
