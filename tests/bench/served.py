"""A `specdec serve` that a bench starts on a free port and that ends with the bench."""

import atexit
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # started servers end with the bench


class Served:
    def __init__(self, build, *flags):
        self.folder = Path(tempfile.mkdtemp())
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(
                [
                    str(x)
                    for x in (
                        build / "bin/specdec",
                        "serve",
                        "--allow-stale",
                        "--port",
                        0,
                        "--admin-socket",
                        self.folder / "admin.sock",
                        *flags,
                    )
                ],
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self.process.kill)
        while "listening on" not in (text := (self.folder / "log").read_text()):
            if self.process.poll() is not None:
                sys.exit("specdec serve ended: " + text[-2000:])
            time.sleep(0.1)
        self.url = text.split("listening on ")[1].split()[0]
        self.port = int(self.url.rsplit(":", 1)[1])
