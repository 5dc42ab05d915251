"""Opens 1,100 idle connections. Clients are still served, and /admin/drain on the Unix socket still works."""

import http.client
import json
import resource
import shutil
import socket
import tempfile
from pathlib import Path

from background import Server
from specdec_run import expect
from tiny_model import write_tiny_model

work = Path(tempfile.mkdtemp())
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
REQUEST = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Admin(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(str(work / "admin.sock"))


def idle(address, family=socket.AF_INET, ask=True):
    connection = socket.socket(family, socket.SOCK_STREAM)
    connection.settimeout(20)
    connection.connect(address)
    if ask:
        connection.sendall(REQUEST)
        expect_200(connection)
    return connection


def expect_200(connection):
    reply = connection.recv(4096)
    if not reply.startswith(b"HTTP/1.1 200"):
        expect(False, f"a client is served: {reply[:200]}")


try:
    write_tiny_model(work / "target", layers=1, seed=1)
    server = Server(f"--target {work}/target --admin-socket {work}/admin.sock")
    port = server.port
    kept = [idle(("127.0.0.1", port), ask=i % 2 == 0) for i in range(1100)]
    expect(len(kept) == 1100, "1,100 connections, half of which never say anything")
    for _ in range(20):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.request(
            "POST",
            "/v1/completions",
            json.dumps({"prompt": "red", "max_tokens": 4}),
            {"Content-Type": "application/json"},
        )
        expect(connection.getresponse().status == 200, "a client is served")
    kept[-2].sendall(REQUEST)
    expect_200(kept[-2])
    admins = [idle(str(work / "admin.sock"), socket.AF_UNIX) for _ in range(40)]
    admin = Admin("admin")
    admin.request("POST", "/admin/drain")
    expect(admin.getresponse().status == 202, "/admin/drain is taken, although 40 connections of the socket idle, too")
    expect(server.process.wait(timeout=60) == 0, "drained")
finally:
    shutil.rmtree(work, ignore_errors=True)
