"""Tests two flags that no other test covers. --request-timeout: if an endpoint does not answer in time, the command
gives up the request and sends it again. --cache: the memory that a server plans for its KV caches."""

import re
import shutil
import socket
import subprocess
import tempfile
import threading
from pathlib import Path

from specdec_run import SPECDEC, expect, run
from tiny_model import write_tiny_model, write_traffic

work = Path(tempfile.mkdtemp(prefix="specdec-flags-"))


class SilentServer:
    """Reads requests and never answers. `again` is set when a request comes a second time."""

    def __init__(self):
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.kept, self.seen, self.again = [], set(), threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.socket.accept()
            self.kept.append(connection)
            request = connection.recv(65536).split(b"\r\n")[0]
            if request in self.seen:
                self.again.set()
            self.seen.add(request)


def asks_again(command, *arguments):
    server = SilentServer()
    words = ["data", command, data, "--target", server.url, "--model", "m", "--concurrency", 1, *arguments]
    process = subprocess.Popen([str(SPECDEC), *map(str, words)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        expect(
            server.again.wait(60),
            f"data {command} --request-timeout gives up a request that is not answered: {sorted(server.seen)}",
        )
    finally:
        process.kill()
        process.wait()


def planned_caches(*arguments):
    """Returns the size of the caches that a server prints in its line "memory: …"."""
    process = subprocess.Popen(
        [str(SPECDEC), "serve", "--target", str(target), "--port", "0", "--threads", "1", *map(str, arguments)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in process.stderr:
            if found := re.search(r"memory: .*caches ([\d.]+ \w+)", line):
                return found[1]
    finally:
        process.kill()
        process.communicate()


try:
    target, data = work / "target", work / "data"
    write_tiny_model(target, layers=1, seed=1)
    write_traffic(work / "log.jsonl", 8)
    run("data", "ingest", work / "log.jsonl", "--target", target, "--out", data, "--holdout", 0)
    asks_again("regenerate", "--target-files", target, "--out", work / "anew", "--request-timeout", 0.2)
    asks_again("label", "--out", work / "labels", "--request-timeout", 0.2)
    plain, large = planned_caches(), planned_caches("--cache", 7)
    expect(large == "7.0 MiB" and plain != large, f"--cache 7 is what serve plans for caches: {plain}, {large}")
finally:
    shutil.rmtree(work)
