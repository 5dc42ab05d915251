"""Starts the server for the tests that use the OpenAI Python client."""

import atexit
import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from specdec_run import SKIP, SPECDEC  # noqa: E402

try:
    import openai
except ImportError:
    print(
        "SKIPPED: the Python package openai is not there (cmake/setup.sh installs it; SPECDEC_PYTHON names "
        "the interpreter)"
    )
    sys.exit(SKIP)


class Server:
    def __init__(self, *arguments):
        self.process = subprocess.Popen(
            [str(SPECDEC), "serve", *map(str, arguments), "--port", "0"], stderr=subprocess.PIPE, text=True
        )
        atexit.register(self.process.kill)  # in case a failed check ends the test
        self.lines, self.url = [], None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())
            if found := re.search(r"listening on (http://\S+)", line):
                self.url = found.group(1)
                break
        if self.url is None:
            print("the server did not start:", "\n".join(self.lines))
            sys.exit(1)
        # Reads the rest of stderr, because a full pipe would block the server.
        self.reader = threading.Thread(
            target=lambda: self.lines.extend(line.rstrip() for line in self.process.stderr), daemon=True
        )
        self.reader.start()

    def client(self, key="unused"):
        return openai.OpenAI(base_url=self.url + "/v1", api_key=key, max_retries=0, timeout=120)

    def get(self, path):
        with urllib.request.urlopen(self.url + path) as reply:
            return reply.read().decode()

    def post(self, path, body):
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as reply:
            return json.loads(reply.read())

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.reader.join(timeout=10)
        return code
