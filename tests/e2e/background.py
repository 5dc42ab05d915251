"""Runs specdec in the background, for tests of servers and watches."""

import atexit
import shlex
import signal
import subprocess
import threading
import time

from specdec_run import SPECDEC, expect


class Started:
    """A command in the background and the lines that it has written to stderr. Killed when the test ends."""

    def __init__(self, command, **options):
        self.lines = []
        self.process = subprocess.Popen(
            [SPECDEC, *shlex.split(command)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        atexit.register(self.process.kill)
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def wait_for(self, text):
        """Waits up to 60 seconds for a line on stderr that contains `text`, and returns it."""
        deadline = time.monotonic() + 60
        while not any(text in line for line in self.lines):
            if time.monotonic() > deadline or (self.process.poll() is not None and not self.reader.is_alive()):
                expect(False, f"'{text}' on stderr, found {self.lines}")
            time.sleep(0.02)
        return next(line for line in self.lines if text in line)

    def stop(self):
        """Sends SIGTERM and waits for the end. Returns the exit code and the text on stdout."""
        self.process.send_signal(signal.SIGTERM)
        out = self.process.stdout.read()
        self.reader.join()
        return self.process.wait(timeout=60), out


class Server(Started):
    """`specdec serve` in the background, on a free port."""

    def __init__(self, words, **options):
        super().__init__(f"serve {words} --port 0 --threads 1", **options)
        self.url = self.wait_for("listening on").split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])

    def drain(self):
        expect(self.stop()[0] == 0, "the server drains")
