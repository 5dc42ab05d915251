"""Runs a server and stores everything that can be observed of its replies."""

import http.client
import json
import re
import shlex
import signal
import socket
import subprocess
import time


class Server:
    """Runs specdec serve on a free port."""

    def __init__(self, o, name, command):
        self.o, self.name = o, name
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        o.normaliser.learn(f":{self.port}", ":<port>")
        o.normaliser.learn(f"--port {self.port}", "--port <port>")
        self.log = o.scratch / f"{name}.log"
        self.arguments = ["serve", *shlex.split(command), "--port", str(self.port), "--threads", "1"]
        self.process = subprocess.Popen(
            [str(o.program), *self.arguments],
            cwd=o.scratch,
            env=o.environment,
            stdout=subprocess.DEVNULL,
            stderr=self.log.open("w"),
        )
        deadline = time.monotonic() + 300
        while "listening on" not in self.log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError("serve does not start: " + self.log.read_text())
            time.sleep(0.05)

    def wait_until_idle(self, headers):
        """Waits until no request is running. The engine may count the last step of a request only after its reply was
        sent."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            connection.request("GET", "/metrics", headers=headers or {})
            page = connection.getresponse().read().decode()
            connection.close()
            if "\nspecdec:num_requests_running 0\n" in page:
                return
            time.sleep(0.02)

    def ask(self, name, method, path, body=None, headers=None):
        if path == "/metrics":
            self.wait_until_idle(headers)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
        connection.request(
            method, path, data, {**({"Content-Type": "application/json"} if data else {}), **(headers or {})}
        )
        reply = connection.getresponse()
        text = reply.read().decode(errors="replace")
        connection.close()
        self.keep_reply(name, method, path, data, reply, text)
        return text

    def keep_reply(self, name, method, path, data, reply, text):
        o, file = self.o, f"http-{name}"
        if path == "/metrics":
            text = metrics_that_count(text)
        if (reply.getheader("Content-Type") or "").startswith("text/event-stream"):
            text = joined_stream(text, o.normaliser, file)
        heads = "".join(
            f"{k.lower()}: {v}\n" for k, v in sorted(reply.getheaders()) if k.lower() not in ("date", "content-length")
        )  # the length depends on ids and times
        o.keep(
            file,
            f"{method} {path}\n{(data or b'').decode(errors='replace')[:2000]}\n{reply.status}\n{heads}\n"
            + o.normaliser.any(file, text),
        )

    def unix(self, name, method, path, body=None):
        self.wait_until_idle({})

        class Unix(http.client.HTTPConnection):
            def connect(inner):
                inner.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                inner.sock.connect(str(self.o.scratch / "admin.sock"))

        connection = Unix("admin", timeout=300)
        data = json.dumps(body).encode() if body else None
        connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
        reply = connection.getresponse()
        self.keep_reply(name, method, path, data, reply, reply.read().decode())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self.o.keep(
            f"{self.name}.txt", f"$ specdec {' '.join(self.arguments)}\nexit {code}\n--- stderr\n{self.log.read_text()}"
        )


def joined_stream(text, normaliser, file):
    """Returns the events of a stream in a reproducible form. The number of tokens per event depends on the speed of the
    connection, so all texts are joined, and all other content is kept once. If a request has several choices, the
    events are sorted, because their order is random."""
    texts, kinds, several = {}, [], '"index":1' in text
    for event in text.split("\n\n"):
        if not event.startswith("data: {"):
            kinds.append(event)
            continue
        chunk = json.loads(event[6:])
        for choice in chunk.get("choices", []):
            part, key = choice.get("delta", choice), "content" if "delta" in choice else "text"
            if isinstance(part.get(key), str):
                texts[choice["index"]] = texts.get(choice["index"], "") + part.pop(key)
        kinds.append(normaliser.any(file, json.dumps(chunk)))
    kinds = list(dict.fromkeys(kinds))
    return "".join(sorted(kinds) if several else kinds) + "".join(
        f"text of choice {i}: {texts[i]!r}\n" for i in sorted(texts)
    )


# Metrics of which only names and labels are kept. They are times and speeds, the number of connections (the previous
# connection may not be closed yet), and the number and sizes of steps (the answers of one request may or may not share
# a step). The _count of a histogram of durations is kept.
VARYING = re.compile(
    r"_seconds(_total|_sum|_bucket)?$|_tokens_per_second$|^specdec:(connections|steps_total|batch_size_.*)$"
)


def metrics_that_count(page):
    """Keeps the order of metric families, and sorts the samples within each family, because samples come from a hash
    table in random order."""
    lines, family = [], 0
    for line in page.splitlines():
        match = None if line.startswith("#") else re.match(r"(\S+?)(\{.*\})? (\S+)$", line)
        if match and (
            VARYING.search(match[1]) or 'route="/metrics"' in line
        ):  # these counts depend on how often wait_until_idle() asked
            line = f"{match[1]}{match[2] or ''} <varies>"
        if line.startswith("#"):
            family += 1
        lines.append((family, line))
    return "".join(line + "\n" for _, line in sorted(lines))
