"""Compares the chat templates that model families publish with transformers' own rendering.

published_templates_test.py BUILD: SPECDEC_CHAT_TEMPLATES is a folder of templates (*.jinja), and
SPECDEC_ENGINE_PACKAGES has transformers below deps/; `make nightly PARTS=tools` makes both folders. Skipped (exit code
77) if one is missing."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
build = Path(sys.argv[1])
templates = os.environ.get("SPECDEC_CHAT_TEMPLATES", "")
packages = os.environ.get("SPECDEC_ENGINE_PACKAGES", "")
for name, folder in (("SPECDEC_CHAT_TEMPLATES", templates), ("SPECDEC_ENGINE_PACKAGES", packages)):
    if not os.path.isdir(folder):
        print(f"SKIPPED: {name} names no folder: {folder!r}")
        sys.exit(77)

with tempfile.TemporaryDirectory() as work:
    goldens = os.path.join(work, "goldens.json")
    environment = dict(os.environ, PYTHONPATH=os.path.join(packages, "deps"), SPECDEC_TEMPLATE_GOLDENS=goldens)
    python = os.environ.get("SPECDEC_ENGINE_PYTHON") or sys.executable
    subprocess.run([python, HERE / "make_goldens.py", templates, goldens], env=environment, check=True)
    test = [build / "tests/text_test", "--gtest_filter=PublishedTemplates.*:Omissions.OfPublished*"]
    sys.exit(subprocess.run(test, env=environment).returncode)
