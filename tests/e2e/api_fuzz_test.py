"""Tests docs/openapi.json against the running server. Every operation with a body gets 1,000 requests that fit its
schema and 1,000 that do not. Every path with a GET gets 1,000 GETs and 1,000 requests with another method. Then 1,000
requests of all kinds follow in a random order over several connections. No reply may be a 5xx. Replies and errors must
have the form that the document says. A body that does not fit must be refused with the name of the field, and the
server must survive. Every route is requested without a key and with a wrong, an empty and a valid key."""

import http.client
import json
import os
import random
import socket
import tempfile
from pathlib import Path

from background import Server
from json_schema import Schemas
from specdec_run import SOURCE, expect
from tiny_model import VOCAB, write_tiny_model

CASES = int(os.environ.get("SPECDEC_FUZZ_CASES", 1000))
work = Path(tempfile.mkdtemp())
document = json.loads((SOURCE / "docs/openapi.json").read_text())
operations = [
    (path, method, operation)
    for path, item in document["paths"].items()
    for method, operation in item.items()
    if method in ("get", "post")
]
narrow = {
    "model": {"enum": ["target", "", None]},
    "max_tokens": {"type": "integer", "minimum": 1, "maximum": 10},
    "max_completion_tokens": {"enum": [None]},
    "n": {"type": ["integer", "null"], "minimum": 1, "maximum": 3},
    "truncate_prompt_tokens": {"enum": [-1, 1, 3, None]},
    "draft": {"enum": [str(work / "other"), str(work / "target"), str(work / "absent"), "no such", "store:canary"]},
}
schemas = Schemas(document, narrow)
document["components"]["schemas"]["TokenId"]["maximum"] = VOCAB - 1
GRAMMARS = ("response_format", "guided_json", "guided_regex", "guided_choice", "structured_outputs")


class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(60)
        self.sock.connect(str(work / "admin.sock"))


class FuzzedServer(Server):
    def __init__(self, flags):
        models = f"--target {work}/target --draft {work}/other --k 2 --max-batch 4 --tool-call-parser hermes"
        super().__init__(f"{models} {flags}", env={**os.environ, "HF_HUB_OFFLINE": "1"})
        self.connections = {}

    def ask(self, path, method, body=None, headers=None, admin=False):
        """Returns (status, headers, bytes). Reopens a connection that the server closed after its reply."""
        for attempt in range(2):
            connection = self.connections.setdefault(
                admin,
                Unix("admin", timeout=60) if admin else http.client.HTTPConnection("127.0.0.1", self.port, timeout=60),
            )
            try:
                connection.request(method.upper(), path, body, headers or {})
                reply = connection.getresponse()
                data = reply.read()
                if reply.will_close:
                    self.connections.pop(admin).close()
                return reply.status, dict((k.lower(), v) for k, v in reply.getheaders()), data
            except (ConnectionError, http.client.HTTPException):
                self.connections.pop(admin).close()
                if attempt == 1:
                    raise

    def healthy(self):
        return self.process.poll() is None and self.ask("/health", "get")[0] == 200


def fail(text, *more):
    expect(
        False, " ".join([text, *(m if isinstance(m, str) else json.dumps(m, ensure_ascii=True)[:1500] for m in more)])
    )


def is_call_forced(body):
    return body.get("tool_choice") == "required" or isinstance(body.get("tool_choice"), dict)


def settle_tools(body):
    names = set()
    for i, tool in enumerate(body.get("tools") or []):
        if tool["function"]["name"] in names:
            tool["function"]["name"] = f"f{i}"
        names.add(tool["function"]["name"])
    choice = body.get("tool_choice")
    if not names and is_call_forced(body):
        body["tool_choice"] = "auto"
    elif isinstance(choice, dict):
        choice["function"]["name"] = min(names)
    if names and body.get("tool_choice") != "none":
        for key in GRAMMARS:
            body.pop(key, None)


def settle(rng, body):
    """Changes a body so that it obeys the rules between two fields, which a schema cannot express."""
    if body.get("stream_options") is not None:
        body["stream"] = True
    if "messages" in body and body.get("top_logprobs") is not None:
        body["logprobs"] = True
    if "messages" in body and "max_tokens" not in body:
        body["max_tokens"] = rng.randint(1, 10)  # without it an answer may fill the whole context
    settle_tools(body)
    for message in body.get("messages", []):  # the template renders only content; the server refuses other fields
        message.pop("reasoning_content", None)
        message.pop("tool_calls", None)
    named = [key for key in GRAMMARS if body.get(key)]
    if body.get("min_tokens"):
        body["min_tokens"] = min(body["min_tokens"], body.get("max_tokens") or 10)
    # A grammar admits few texts that have min_tokens tokens or consist only of allowed_token_ids, so both keys are
    # mostly removed from bodies with a grammar.
    for key in ("min_tokens", "allowed_token_ids"):
        if named and key in body and rng.random() < 0.95:
            del body[key]
    for key in named[1:]:
        del body[key]
    if isinstance(body.get("structured_outputs"), dict):
        asked = [k for k in ("json", "json_object", "regex", "choice") if body["structured_outputs"].get(k)]
        for key in asked[1:]:
            del body["structured_outputs"][key]
    return body


def check_reply(operation, status, headers, data, body):
    answer = operation["responses"].get(str(status))
    if answer is None:
        fail(
            "a status the document does not have:",
            operation["operationId"],
            str(status),
            data.decode(errors="replace"),
            body,
        )
    kind = headers.get("content-type", "").split(";")[0]
    if kind not in answer.get("content", {}):
        fail("a type the document does not have:", operation["operationId"], str(status), kind, body)
    schema = answer["content"][kind]["schema"]
    if kind == "application/json":
        check_schema(operation, schema, json.loads(data), body)
    if kind == "text/event-stream":
        events = [e.removeprefix("data: ") for e in data.decode().split("\n\n") if e]
        if events.pop() != "[DONE]":
            fail("a stream without an end:", operation["operationId"], body)
        for event in map(json.loads, events):
            check_schema(
                operation, document["components"]["schemas"]["Error"] if "error" in event else schema, event, body
            )


def check_schema(operation, schema, value, body):
    if problem := schemas.problem(schema, value):
        fail("a reply the document does not describe:", operation["operationId"], problem, value, body)


def bodies_that_fit(rng, path, operation, server, admin):
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    good = 0
    for _ in range(CASES):
        body = settle(rng, schemas.make(rng, schema))
        status, headers, data = server.ask(path, "post", json.dumps(body), {"Content-Type": "application/json"}, admin)
        check_reply(operation, status, headers, data, body)
        good += status == 200
        if admin or status == 200:
            continue
        error = json.loads(data)["error"]
        # Two refusals of a valid body are allowed. The constraints of a request may contradict each other, so that no
        # token is left (no_token_left). A function's parameters may admit no object, so that a forced call of the
        # function cannot be written (invalid_value).
        impossible_call = error["code"] == "invalid_value" and error["param"] == "tools" and is_call_forced(body)
        if not (status == 400 and (error["code"] == "no_token_left" or impossible_call)):
            fail("a request that fits is refused:", path, str(status), error, body)
    expect(
        good >= (1 if admin else CASES * 0.9),
        f"{operation['operationId']}: {good} of {CASES} requests that fit were answered 200, the others "
        "refused with a reason",
    )


BROKEN = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"x"',
    b'{"prompt":"a","prompt":"b"}',
    b'{"prompt":"\xff"}',
    b'{"prompt":"a","temperature":NaN}',
    b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"prompt":"a","metadata":{"a":[' + b"1," * 70000 + b"1]}}",
    b"\x00" * 100,
    b'{"prompt":"a"}x',
    b'{"temperature":1e999,"prompt":"a"}',
]


def bodies_that_do_not(rng, path, operation, server, admin):
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    for i in range(CASES):
        body, raw, headers, expected = None, None, {"Content-Type": "application/json"}, {400}
        if i % 10 == 0:
            raw = BROKEN[i // 10 % len(BROKEN)]
        elif i % 10 == 1 and not admin:
            raw, expected = b"{}", {415}
            headers = rng.choice(
                [
                    {},
                    {"Content-Type": "text/plain"},
                    {"Content-Type": "application/json", "Content-Encoding": "gzip"},
                    {"Content-Type": "application/jsonp"},
                ]
            )
        else:
            while body is None:
                body = schemas.spoil(rng, schema, settle(rng, schemas.make(rng, schema)))
            raw = json.dumps(body).encode()
            expected = {400, 404} if isinstance(body, dict) and body.get("model") not in ("target", "", None) else {400}
        status, reply_headers, data = server.ask(path, "post", raw, headers, admin)
        if status not in expected:
            fail(
                f"expected {expected}, found {status}:",
                path,
                schemas.problem(schema, body) or "",
                data.decode(errors="replace")[:300],
                raw.decode(errors="replace"),
            )
        check_reply(operation, status, reply_headers, data, body)
    print(f"ok: {operation['operationId']}: {CASES} requests that do not fit were refused")


def reads(rng, path, operation, server, admin):
    """Sends GETs with random queries and headers and with names that do not exist. After each GET, sends a request with
    another method, which must get 405."""
    for i in range(CASES):
        name = rng.choice(["target", "target", "other", "tar", "target/", "..", "%00", "%2e%2e", "a" * 300, "targ%65t"])
        place = path.replace("{model}", name) + rng.choice(
            ["", "?", "?a=b", "?limit=" + "9" * rng.randint(1, 200), "?x[]=%ff"]
        )
        headers = rng.choice(
            [
                {},
                {"Accept": "application/xml"},
                {"Authorization": "Basic !!!"},
                {"X-" + "y" * rng.randint(1, 100): "z" * rng.randint(0, 1000)},
                {"Cookie": "a=" + "b" * 500},
                {"Range": "bytes=0-1"},
            ]
        )
        wanted = 200
        if path == "/gate" and i % 2:
            floor, wanted = rng.choice(
                [
                    ("0.7", 200),
                    ("0", 200),
                    ("1", 200),
                    ("", 400),
                    ("2", 400),
                    ("-0.1", 400),
                    ("nan", 400),
                    ("0x1", 400),
                    ("0.5x", 400),
                    ("9" * 300, 400),
                ]
            )
            place = path + rng.choice(["?", "?a=b&"]) + "floor=" + floor
        status, reply_headers, data = server.ask(place, "get", None, headers, admin)
        check_reply(operation, status, reply_headers, data, place)
        if "{model}" not in path and status != wanted:
            fail("not answered:", place, str(status))
        method = rng.choice(
            ["PUT", "DELETE", "PATCH", "TRACE"] + (["POST"] if "post" not in document["paths"][path] else [])
        )
        status, reply_headers, data = server.ask(
            place, method, b"{}" if method != "TRACE" else None, {"Content-Type": "application/json"}, admin
        )
        if "%00" in place:  # a path with a control character is refused, whatever the method
            if status != 400:
                fail("expected 400:", method, place, str(status))
        elif status != 405 or "GET" not in reply_headers.get("allow", ""):
            fail("expected 405 with Allow:", method, place, str(status))
    print(f"ok: {operation['operationId']}: {CASES} reads, {CASES} with another method")


def any_bodies(rng, path, operation, server):
    """Sends POSTs with random bodies to a route that ignores its body. Each must get 200."""
    for _ in range(CASES):
        body = rng.randbytes(rng.choice([0, 1, 100, 100000]))
        headers = rng.choice([{}, {"Content-Type": "application/json"}, {"Content-Encoding": "gzip"}])
        status, reply_headers, data = server.ask(path, "post", body, headers)
        check_reply(operation, status, reply_headers, data, path)
        if status != 200:
            fail("not answered:", path, str(status))
    print(f"ok: {operation['operationId']}: {CASES} bodies of any kind")


def chain(rng):
    """Returns a request whose JSON schema is a chain of references. The server compiles short chains, refuses long ones
    with the name of the field, and survives all of them."""
    count, kind = rng.choice([1, 3, 20, 100, 400, 509, 512, 700, 1300]), rng.randrange(5)
    link = [
        lambda r: r,
        lambda r: {"anyOf": [r, {"type": "null"}]},
        lambda r: {"type": "array", "items": r},
        lambda r: {"properties": {"a": r}},
        lambda r: {"allOf": [r]},
    ][kind]
    to = lambda i: link({"$ref": f"#/$defs/{i}"})
    last = to(rng.randrange(count)) if rng.random() < 0.3 else {"type": "integer"}  # some are cycles
    schema = {**to(0), "$defs": {**{str(i): to(i + 1) for i in range(count)}, str(count): last}}
    wrapped = (
        {"guided_json": schema},
        {"guided_json": json.dumps(schema)},
        {"structured_outputs": {"json": schema}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    )
    return {"prompt": "a", "max_tokens": 1, **rng.choice(wrapped)}


def sequences(server):
    """Sends requests of every kind in a random order over several connections and abandons some midway. Each must be
    answered as if it were alone, and all requests with the same fixed seed must get the same text."""
    rng, path = random.Random("sequences"), "/v1/completions"
    operation = document["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    connections, controls, counts = [None] * 6, {}, {}

    def send(body, give_up=False):
        i = rng.randrange(len(connections))
        connection = connections[i] = connections[i] or http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request("POST", path, raw, {"Content-Type": "application/json"})
        if give_up:
            if rng.random() < 0.5:
                connection.getresponse().read(rng.randint(1, 40))
            connection.close()
            connections[i] = None
            return None
        reply = connection.getresponse()
        status, headers, data = reply.status, dict((k.lower(), v) for k, v in reply.getheaders()), reply.read()
        if reply.will_close:
            connection.close()
            connections[i] = None
        check_reply(
            operation, status, headers, data, body if not isinstance(body, bytes) else raw.decode(errors="replace")
        )
        return status, data

    for _ in range(CASES):
        kind = rng.choice(["control", "fits", "does not fit", "broken", "chain", "given up", "tiny number"])
        counts[kind] = counts.get(kind, 0) + 1
        if kind == "control":
            seed = rng.randrange(3)
            status, data = send(
                {"prompt": "ab", "max_tokens": 6, "seed": seed, "temperature": rng.choice([0.9]), "n": 2}
            )
            texts = status, [c["text"] for c in json.loads(data)["choices"]] if status == 200 else data.decode()
            if controls.setdefault(seed, texts) != texts or status != 200:
                fail("a request is not answered as before:", str(texts), str(controls[seed]))
        elif kind == "given up":
            send(
                {
                    "prompt": "a",
                    "max_tokens": rng.randint(1, 200),
                    "stream": rng.random() < 0.8,
                    "n": rng.randint(1, 4),
                    "ignore_eos": True,
                },
                give_up=True,
            )
        elif kind == "chain":
            body = chain(rng)
            status, data = send(body)
            if (
                status not in (200, 400)
                or status == 400
                and (json.loads(data)["error"]["param"] or "prompt").split(".")[0] not in GRAMMARS
            ):
                fail("a chain of references:", str(status), data.decode(errors="replace")[:300])
        elif kind == "tiny number":
            field = rng.choice(["temperature", "repetition_penalty", "top_p"])
            status, data = send(
                {"prompt": "a", "n": 8, "max_tokens": 2, field: rng.choice([5e-324, 1e-320, 1e-60, 1e-40, 1e-38])}
            )
            if status != 400 or json.loads(data)["error"]["param"] != field:
                fail("a number below float's:", field, str(status), data.decode(errors="replace")[:300])
        elif kind == "broken":
            send(rng.choice(BROKEN))
        else:
            body = settle(rng, schemas.make(rng, schema))
            spoilt = schemas.spoil(rng, schema, body) if kind == "does not fit" else body
            status, data = send(body if spoilt is None else spoilt)
            if status >= 500:
                fail("a 5xx:", str(status), data.decode(errors="replace")[:300])
    expect(
        server.healthy() and len(controls) == 3,
        f"sequences: {CASES} requests in a random order "
        f"({', '.join(f'{n} {k}' for k, n in sorted(counts.items()))}), each answered as alone",
    )


def fuzz():
    server = FuzzedServer(f"--admin-socket {work}/admin.sock")
    for path, method, operation in operations:
        rng = random.Random(operation["operationId"])
        admin = path.startswith("/admin")
        if path == "/admin/drain":
            continue
        if method == "get":
            reads(rng, path, operation, server, admin)
        elif "requestBody" not in operation:
            any_bodies(rng, path, operation, server)
        else:
            bodies_that_fit(rng, path, operation, server, admin)
            bodies_that_do_not(rng, path, operation, server, admin)
        expect(server.healthy(), "alive after " + operation["operationId"])
    sequences(server)
    status, _, _ = server.ask("/admin/drain", "post", admin=True)
    expect(status == 202 and server.process.wait(60) == 0, "drained")


def matrix():
    (work / "keys").write_text("right-key-of-the-test one\n")
    server = FuzzedServer(f"--api-key-file {work}/keys --admin-socket {work}/admin.sock")
    keys = {
        "no key": None,
        "a wrong key": "Bearer wrong-key-of-the-test",
        "an empty key": "Bearer ",
        "a key": "Bearer right-key-of-the-test",
    }
    cells = 0
    for path, method, operation in operations:
        public = not path.startswith("/admin")
        for name, key in keys.items():
            headers = {"Content-Type": "application/json", **({"Authorization": key} if key else {})}
            body = (
                None
                if method == "get"
                else json.dumps(
                    {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "tokens": [1], "max_tokens": 1}
                )
            )
            status, _, _ = server.ask(path.replace("{model}", "target"), method, body, headers)
            wanted = (
                404
                if not public and name == "a key"
                else 200
                if name == "a key" or operation.get("security") == [] and public
                else 401
            )
            if status != wanted:
                fail(f"{method} {path} with {name}: expected {wanted}, found {status}")
            if public and path != "/health":
                status, _, _ = server.ask(path.replace("{model}", "target"), method, body, headers, admin=True)
                if status != 404:
                    fail(f"{method} {path} on the admin socket: expected 404, found {status}")
            cells += 1
    expect(cells == len(keys) * len(operations), f"{cells} cells of routes and keys: none is open that should not be")
    server.drain()


write_tiny_model(work / "target", layers=1, seed=1)
write_tiny_model(work / "other", layers=1, seed=2)
matrix()
fuzz()
