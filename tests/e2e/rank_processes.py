"""Starts distill as several ranks (processes), as a launcher does, and compares the drafts that they write."""

import json
import os
import re
import socket
import struct
import subprocess
from pathlib import Path

from specdec_run import SPECDEC, expect

# Removes the variables of a launcher that may run this test, because the ranks started here would obey them.
for name in list(os.environ):
    if re.match(r"(RANK|WORLD_SIZE|LOCAL_|MASTER_|TORCHELASTIC_|SLURM_|OMPI_|PMI_|PET_|JOB_COMPLETION)", name):
        del os.environ[name]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def start(arguments, ranks=2, options=("--json",), more=None, env=None):
    """Starts the ranks. `more` maps a rank to its additional arguments, and `env` to its additional variables."""
    port, processes = free_port(), []
    for rank in range(ranks):
        place = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
        place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        line = [str(SPECDEC), *options, *map(str, arguments), *map(str, (more or {}).get(rank, ()))]
        environment = {**os.environ, **{k: str(v) for k, v in place.items()}, **(env or {}).get(rank, {})}
        processes.append(
            subprocess.Popen(line, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )
    return processes


def finish(processes):
    """Returns exit code, stdout and stderr of each rank. Fails if a rank does not end within a minute."""
    done = []
    for rank, process in enumerate(processes):
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            for other in processes:
                other.kill()
            print("stderr:", process.communicate()[1][-3000:])
            expect(False, f"rank {rank} ends within a minute")
        done.append((process.returncode, out, err))
    return done


def weights(file):
    """Returns the fp32 values of a safetensors file, by name."""
    bytes_ = Path(file).read_bytes()
    (size,) = struct.unpack("<Q", bytes_[:8])
    header = json.loads(bytes_[8 : 8 + size])
    values = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            values[name] = struct.unpack(f"<{(end - begin) // 4}f", bytes_[begin:end])
    return values


def distance(one, other):
    a, b = weights(one / "draft/model.safetensors"), weights(other / "draft/model.safetensors")
    assert a.keys() == b.keys()
    return max(abs(x - y) for name in a for x, y in zip(a[name], b[name], strict=True))


def last_line(err):
    return err.strip().splitlines()[-1] if err.strip() else ""
