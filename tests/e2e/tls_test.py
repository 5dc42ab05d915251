"""Tests how clients reach the server: HTTPS with a certificate made here, reloading of files at SIGHUP, names of the
model, and requests from web pages of another origin. Hostile clients (half-open handshakes, garbage, plain HTTP) must
end only their own connections."""

import http.client
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from specdec_run import SKIP, SPECDEC, expect, run
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp())
openssl = shutil.which("openssl")
if not openssl:
    print("SKIPPED: no openssl to make a certificate with")
    sys.exit(SKIP)
HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # the first 11 bytes of a TLS ClientHello of 512 bytes


def make_identity(name):
    """Returns the paths of a new self-signed certificate and its key."""
    certificate, key = work / f"{name}.pem", work / f"{name}.key"
    subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    made = [openssl, "req", "-x509", *curve, "-days", "2", *subject, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(made, check=True, capture_output=True)
    return certificate, key


class Server:
    def __init__(self, *flags):
        self.text, self.changed = "", threading.Condition()
        command = [SPECDEC, "serve", "--target", work / "target", "--port", 0, "--threads", 1, *flags]
        self.process = subprocess.Popen([str(a) for a in command], stderr=subprocess.PIPE, text=True)
        threading.Thread(target=self.collect, daemon=True).start()

    def collect(self):
        for line in itertools.chain(self.process.stderr, ["the end\n"]):
            with self.changed:
                self.text += line
                self.changed.notify_all()

    def wait_for(self, text, after=0):
        """Waits until stderr has `text` after position `after`. Returns the rest of that line."""
        with self.changed:
            self.changed.wait_for(lambda: text in self.text[after:] or self.text.endswith("the end\n"), timeout=120)
            if text not in self.text[after:]:
                expect(False, f"the server says '{text}': {self.text[after:]}")
            return self.text[after:].split(text, 1)[1].split("\n", 1)[0]

    def started(self):
        self.scheme, self.port = self.wait_for("listening on ").strip().rsplit("://127.0.0.1:", 1)
        return self

    def reload(self, *texts):
        """Sends SIGHUP and waits for these texts in the log."""
        before = len(self.text)
        self.process.send_signal(signal.SIGHUP)
        for text in texts:
            self.wait_for(text, before)

    def connect(self, trusted=None):
        """Returns a connection. With `trusted`, it is HTTPS and trusts only this certificate; without, it is plain
        HTTP."""
        if not trusted:
            return http.client.HTTPConnection("127.0.0.1", int(self.port), timeout=60)
        context = ssl.create_default_context(cafile=str(trusted))
        return http.client.HTTPSConnection("127.0.0.1", int(self.port), timeout=60, context=context)

    def raw(self, data=b""):
        connection = socket.create_connection(("127.0.0.1", int(self.port)), timeout=60)
        connection.sendall(data)
        return connection

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        expect(self.process.wait(60) == 0, "drained")


def ask(connection, path, body=None, **headers):
    headers = {name.replace("_", "-"): value for name, value in headers.items()}
    if body is not None:
        headers["Content-Type"] = "application/json"
    connection.request("GET" if body is None else "POST", path, json.dumps(body) if body is not None else None, headers)
    reply = connection.getresponse()
    return reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read().decode()


def check_mistakes():
    certificate, key = make_identity("good")
    other_key = make_identity("other")[1]
    broken = work / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nnot base64\n-----END CERTIFICATE-----\n")
    for flags, texts in [
        (["--tls-cert", certificate], ["--tls-cert", "--tls-key FILE"]),
        (["--tls-key", key], ["--tls-key", "--tls-cert FILE"]),
        (["--tls-cert", work / "none", "--tls-key", key], [f"{work}/none"]),
        (["--tls-cert", work, "--tls-key", key], [str(work)]),
        (["--tls-cert", broken, "--tls-key", key], [str(broken), "no certificate found"]),
        (["--tls-cert", certificate, "--tls-key", other_key], [str(other_key), "does not belong", str(certificate)]),
        (["--allow-origin", "*"], ["--allow-origin", "found '*'"]),
    ]:
        _, _, err = run("serve", "--target", work / "target", "--port", 0, *flags, code=2, last_line=texts)
        expect("memory:" not in err and "PRIVATE" not in err, f"refused before a model is loaded: {texts[0]}")


def check_requests(server, certificate):
    tls = server.connect(certificate)
    expect(ask(tls, "/health")[0] == 200, "the certificate is verified, and the server answers")
    expect(tls.sock.version() == "TLSv1.3" and tls.sock.compression() is None, "TLS 1.3, no compression")
    expect(ask(tls, "/v1/models")[0] == 401, "keys are asked for as before")
    auth = {"Authorization": "Bearer key-of-anna"}
    status, _, text = ask(tls, "/v1/completions", {"prompt": "red", "max_tokens": 4, "model": "second"}, **auth)
    expect(
        status == 200 and json.loads(text)["model"] == "first", "asked for by the second name, reported by the first"
    )
    models = [model["id"] for model in json.loads(ask(tls, "/v1/models", **auth)[2])["data"]]
    expect(models == ["first", "second", "third"], "--served-model-name names several, in a list or repeated")
    status, headers, text = ask(
        tls, "/v1/completions", {"prompt": "red", "stream": True}, Origin="https://app.example", **auth
    )
    expect(text.endswith("data: [DONE]\n\n"), "streamed over TLS")
    expect(headers.get("access-control-allow-origin") == "https://app.example", "a stream has the header of CORS")
    expect(headers["vary"] == "Origin", "Vary: Origin")
    tls.close()
    plain = server.connect()
    status, _, text = ask(plain, "/health")
    expect((status, json.loads(text)["error"]["code"]) == (400, "https_expected"), "plain HTTP is told to use https")


def check_hostile(server, certificate):
    half = [server.raw(HALF_HELLO if i % 2 else b"") for i in range(200)]
    noise = [server.raw(os.urandom(3000)) for _ in range(50)]
    for _ in range(20):
        tls = server.connect(certificate)
        if ask(tls, "/health")[0] != 200:
            expect(False, "a good client is served")
        tls.close()
    print("ok: 200 half-open handshakes and 50 clients that send garbage keep no good client out")
    context = ssl.create_default_context(cafile=str(certificate))
    secure = context.wrap_socket(server.raw(), server_hostname="127.0.0.1")
    secure.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    expect(secure.recv(100).startswith(b"HTTP/1.1 200"), "a client that turns hostile later")
    raw = socket.socket(fileno=os.dup(secure.fileno()))
    raw.sendall(os.urandom(3000))
    raw.settimeout(60)
    try:
        while raw.recv(4096):
            pass
    except ConnectionError:
        pass
    expect(True, "garbage after the handshake ends its connection")
    for connection in half:
        try:
            connection.recv(100)
        except ConnectionError:
            pass
    expect(True, "every half-open handshake is ended by the server, like a head that never comes")
    for connection in [*half, *noise, raw]:
        connection.close()
    expect(ask(server.connect(certificate), "/health")[0] == 200, "and the server answers")


def check_reload(server, certificate, key, keys):
    second, second_key = make_identity("renewed")
    auth = {"Authorization": "Bearer key-of-anna"}
    stream = server.connect(certificate)
    body = json.dumps({"prompt": "red", "max_tokens": 240, "stream": True, "ignore_eos": True})
    stream.request("POST", "/v1/completions", body, {"Content-Type": "application/json", **auth})
    reply = stream.getresponse()
    reply.readline()
    keys.write_text("short\n")
    shutil.copy(second, certificate)
    # If a file is broken when it is read again, its old content stays in force.
    server.reload("error: reload: --api-key-file: the old content", "error: reload: --tls-cert, --tls-key: the old")
    expect("key-of-anna" not in server.text and "PRIVATE" not in server.text, "no key is logged")
    expect(
        ask(server.connect(work / "first.pem"), "/v1/models", **auth)[0] == 200,
        "the old keys and the old certificate are in force",
    )
    keys.write_text("key-of-otto otto\n")
    shutil.copy(second_key, key)
    server.reload("reload: --api-key-file: the new content", "reload: --tls-cert, --tls-key: the new content")
    tls = server.connect(second)
    expect(ask(tls, "/v1/models", **auth)[0] == 401, "the old key is refused, under the new certificate")
    expect(ask(tls, "/v1/models", Authorization="Bearer key-of-otto")[0] == 200, "the new key is accepted")
    expect(reply.read().endswith(b"data: [DONE]\n\n"), "the stream that began before went on")


def check_hangups():
    """Checks SIGHUP. It must not end a server without files to reload, even while the server loads. It must end
    distill."""
    server = Server("--max-batch", 2)
    server.wait_for("memory:")
    server.process.send_signal(signal.SIGHUP)
    server.started().wait_for("warning: reload: there is nothing to read again")
    server.reload("nothing to read again")
    expect(ask(server.connect(), "/health")[0] == 200 and server.scheme == "http", "SIGHUP without files ends nothing")
    server.end()
    write_traffic(work / "log.jsonl", 300)
    run("data", "ingest", work / "log.jsonl", "--target", work / "target", "--out", work / "data", "--holdout", 0.3)
    command = ["distill", "--target", work / "target", "--data", work / "data", "--draft", "prune:1", "--threads", 1]
    trains = subprocess.Popen(
        [str(a) for a in (SPECDEC, *command, "--max-steps", 10**6, "--out", work / "run")], stderr=subprocess.DEVNULL
    )
    while trains.poll() is None and not (work / "run").exists():  # the folder appears when training begins
        time.sleep(0.05)
    trains.send_signal(signal.SIGHUP)
    expect(trains.wait(60) == -signal.SIGHUP, "SIGHUP ends a command that is no server")


try:
    write_tiny_model(work / "target", layers=2, seed=1)
    check_mistakes()
    make_identity("first")
    certificate, key, keys = work / "served.pem", work / "served.key", work / "keys.txt"
    shutil.copy(work / "first.pem", certificate)
    shutil.copy(work / "first.key", key)
    keys.write_text("key-of-anna anna\n")
    names = ["--served-model-name", "first,second", "--served-model-name", "third"]
    tls = ["--tls-cert", certificate, "--tls-key", key, "--api-key-file", keys]
    server = Server(*tls, *names, "--allow-origin", "https://app.example,http://localhost:3000").started()
    try:
        expect(server.scheme == "https", "listening on https://")
        check_requests(server, certificate)
        check_hostile(server, certificate)
        check_reload(server, certificate, key, keys)
        server.end()
    finally:
        server.process.kill()
    check_hangups()
finally:
    shutil.rmtree(work, ignore_errors=True)
