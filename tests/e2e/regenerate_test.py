"""Runs `data regenerate` answer by answer against our own server with a scripted model. Each answer must be made from
the new answers before it. A recorded tool result must be kept if the same function is called. A killed run must
continue."""

import array
import json
import signal
import struct
import subprocess
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import Request, urlopen

from background import Server
from scripted_model import write_scripted_model
from specdec_run import SPECDEC, expect, run, run_json

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    '{{ \'<tool_call>{"name": "\' + c.function.name + \'", "arguments": \' + (c.function.arguments | tojson)'
    " + '}</tool_call>' }}{% endfor %}{{ '</s>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}"
)
CALL = ["<tool_call>", '{"name": "get_weather", ', '"arguments": {"city": "Oslo"}}', "</tool_call>"]
OTHER = ["<tool_call> ", '{"name": "get_time", ', '"arguments": {}}', "</tool_call> "]
SCRIPTS = {
    "hello": ["Good", " morning", " all"],
    "more": ["Still", " night", " here"],
    "weather": CALL,
    "rain": ["Take", " an", " umbrella"],
    "time": OTHER,
}


def turn(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name):
    function = {"name": name, "arguments": '{"city": "Bergen"}'}
    return turn("assistant", "", tool_calls=[{"id": "1", "type": "function", "function": function}])


TALK = [turn("user", "<hello>"), turn("assistant", "old"), turn("user", "<more>"), turn("assistant", "older")]
RESULT = [turn("tool", "<rain>", tool_call_id="1"), turn("assistant", "old")]
CONVERSATIONS = {
    "talk": TALK,
    "same": [turn("user", "<weather>"), call("get_weather"), *RESULT],
    "other": [turn("user", "<time>"), call("get_weather"), *RESULT],
}

work = Path(tempfile.mkdtemp(prefix="specdec-regenerate-"))
model = work / "scripted"
write_scripted_model(model, SCRIPTS, TEMPLATE)
vocabulary = {t["id"]: t["content"] for t in json.loads((model / "tokenizer.json").read_text())["added_tokens"]}


class Counting(BaseHTTPRequestHandler):
    """Passes requests on to the server and counts them. Leaves all POSTs after the first `until` without an answer."""

    protocol_version = "HTTP/1.1"
    upstream, asked, until, held = "", 0, 10**9, threading.Event()

    def log_message(self, *arguments):
        pass

    def forward(self, body=None):
        request = Request(self.upstream + self.path, body, {"Content-Type": "application/json"})
        with urlopen(request) as reply:
            data = reply.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.forward()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).asked += 1
        if self.asked > self.until:
            self.held.set()
            time.sleep(600)
        self.forward(body)


def ingest(conversations, out):
    file = work / "log.jsonl"
    file.write_text("".join(json.dumps({"id": k, "messages": m}) + "\n" for k, m in conversations.items()))
    run("data", "ingest", file, "--target", model, "--out", out, "--holdout", 0, "--no-dedup", "--max-length", 200)
    return out


def texts(folder):
    """Returns a map from the id of each row to its tokens as text."""
    raw = (folder / "train-00000.safetensors").read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])

    def tensor(name, kind):
        begin, end = (8 + size + x for x in header[name]["data_offsets"])
        return array.array(kind, raw[begin:end])

    tokens, starts = tensor("tokens", "i"), tensor("row_start", "q")
    ids = [json.loads(line)["id"] for line in (folder / "train-00000.jsonl").read_text().splitlines()]
    spell = lambda part: "".join(vocabulary.get(t, "?") for t in part)
    return {id: spell(tokens[starts[i] : starts[i + 1]]) for i, id in enumerate(ids)}


data = ingest(CONVERSATIONS, work / "data")
server = Server(f"--target {model}")
url = server.url
try:
    Counting.upstream = url
    counter = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    counter.handle_error = lambda *_: None  # ignores the broken connections of the killed client
    threading.Thread(target=counter.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{counter.server_port}"
    regenerate = ["data", "regenerate", data, "--target-files", model, "--temperature", 0, "--target", endpoint]

    _, result = run_json(*regenerate, "--out", work / "anew")
    expect(result["turns"] == 5 and result["asked"] == 3, "three conversations, five answers")
    expect(result["ended_early"] == {"tool_calls": 1}, "one conversation ends because it calls another function")
    rows = texts(work / "anew")
    expect(rows["talk"] == "<hello>Good morning all</s><more>Still night here</s>", "both answers of the talk are new")
    expect(
        rows["same"] == "<weather>" + "".join(CALL) + "</s><rain>Take an umbrella</s>",
        "the recorded result stays where the same function is called, with other arguments",
    )
    expect(rows["other"] == "<time>" + "".join(OTHER) + "</s>", "it does not where another function is called")
    rejects = [json.loads(line) for line in (work / "anew/rejects.jsonl").read_text().splitlines()]
    expect([(r["id"], r["reason"]) for r in rejects] == [("other", "tool_calls")], "rejects.jsonl names the row")

    # A run that is killed while it waits for an answer continues without asking for earlier answers again.
    many = ingest({f"talk-{i}": TALK for i in range(9)}, work / "many")
    regenerate[2] = many
    run(*regenerate, "--out", work / "whole")
    Counting.asked, Counting.until = 0, 7
    killed = subprocess.Popen([str(a) for a in [SPECDEC, *regenerate, "--out", work / "killed", "--concurrency", 2]])
    expect(Counting.held.wait(300), "the run is in the middle")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    kept = (work / "killed.progress.jsonl").read_text().count('"tokens"')
    expect(1 <= kept < 9 and not (work / "killed").exists(), f"{kept} conversations are kept, and there is no output")
    Counting.asked, Counting.until = 0, 10**9
    _, result = run_json(*regenerate, "--out", work / "killed", "--resume")
    expect(result["reused"] == kept and Counting.asked == 2 * (9 - kept), "they are not asked for again")
    index = [(work / name / "index.json").read_bytes() for name in ("whole", "killed")]
    expect(index[0] == index[1], "the result is that of an uninterrupted run")
finally:
    server.drain()
