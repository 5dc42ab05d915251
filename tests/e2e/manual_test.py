"""Checks the manual pages. Each command must have a page with every flag of --help. man, groff and mandoc, if
installed, must read every page without a warning."""

import os
import re
import shutil
import subprocess

from command_help import commands
from specdec_run import BUILD, expect, run

PAGES = BUILD / "share/man/man1"


def warnings_of(command, page):
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"}
    done = subprocess.run([*command, str(page)], capture_output=True, text=True, env=environment)
    return (done.stderr + (done.stdout if command[0] == "mandoc" else "")).strip()


def plain(page):
    """Returns the text of a page without troff's escapes."""
    text = page.read_text()
    return re.sub(r"\\f[BIR]", "", text).replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")


known = commands()
names = {"-".join(("specdec", *words)): words for words in known}
expect({page.stem for page in PAGES.glob("*.1")} == set(names), f"{len(names)} pages, one for each command")
tools = {
    "man": ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"],
    "groff": ["groff", "-Kutf8", "-Tutf8", "-man", "-ww", "-z"],
    "mandoc": ["mandoc", "-T", "lint", "-W", "warning,stop"],
}
for tool, command in tools.items():
    if not shutil.which(tool):
        print(f"SKIPPED: {tool} is not installed")
        continue
    for name in sorted(names):
        problems = warnings_of(command, PAGES / f"{name}.1")
        problems = "\n".join(line for line in problems.splitlines() if "missing date" not in line)
        expect(not problems, f"{tool}: {name}.1 {problems}")
for name, words in names.items():
    text = plain(PAGES / f"{name}.1")
    missing = {flag for flag in known[words] if not re.search(rf"^(.*, )?{re.escape(flag)}\b", text, re.M)}
    expect(not missing, f"{name}.1 has all {len(known[words])} flags {missing or ''}")
    _, printed, _ = run("manual", *words)
    expect(printed == (PAGES / f"{name}.1").read_text(), f"specdec manual {' '.join(words)} prints it")
_, text, _ = run("manual", "monitor", "check")
expect(".SH EXIT STATUS" in text and ".SH EXAMPLES" in text, "examples and exit codes have their sections")
run("manual", "monitor", "chek", code=2, last_line=["unknown command 'monitor chek'"])
