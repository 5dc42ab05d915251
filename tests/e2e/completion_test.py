"""Checks the completion of bash, zsh and fish in the shells themselves. Every command and every flag of --help must be
offered, and so must the values that a flag can take. If zsh or fish is not installed, the test prints that it skips
this shell."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from command_help import commands
from specdec_run import BUILD, SPECDEC, expect, run

work = Path(tempfile.mkdtemp())
SCRIPTS = {
    "bash": BUILD / "share/bash-completion/completions/specdec",
    "zsh": BUILD / "share/zsh/site-functions/_specdec",
    "fish": BUILD / "share/fish/vendor_completions.d/specdec.fish",
}

# Sets the words as readline would, calls the completion function and prints its results. `compopt` works only while
# readline completes, so a function that prints its arguments replaces `compopt`.
BASH = r"""
source "$1"
compopt() { printf 'option %s\n' "${@: -1}"; }
while IFS= read -r line; do
  IFS=$'\x1f' read -r -a COMP_WORDS <<< "$line"
  [[ $line != *$'\x1f' ]] || COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()
  _specdec
  [ ${#COMPREPLY[@]} -eq 0 ] || printf 'word %s\n' "${COMPREPLY[@]}"
  echo '<end>'
done
"""


def answers(shell, questions):
    """Returns what a shell offers after each list of words, of which the last is being typed."""
    environment = {**os.environ, "HOME": str(work), "TERM": "dumb", "PATH": f"{BUILD}/bin:{os.environ['PATH']}"}
    if shell == "zsh":
        parts = [out_of_zsh(" ".join(words), environment) for words in questions]
        return [{line.removeprefix("word ") for line in part.splitlines()} for part in parts]
    if shell == "bash":
        lines, command = ["\x1f".join(words) for words in questions], ["bash", "-c", BASH, "bash", SCRIPTS["bash"]]
    else:
        load = f"source {SCRIPTS['fish']}; while read --line line; complete -C $line; echo '<end>'; end"
        lines, command = [" ".join(words) for words in questions], ["fish", "--no-config", "-c", load]
    done = subprocess.run(
        [str(word) for word in command],
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=600,
        cwd=work,
        env=environment,
    )
    parts = done.stdout.split("<end>\n")[:-1]
    expect(len(parts) == len(questions) and not done.stderr, f"{shell} answers {len(parts)} questions {done.stderr}")
    if shell == "fish":
        return [{line.split("\t")[0] for line in part.splitlines()} for part in parts]
    return [{line.removeprefix("word ") for line in part.splitlines()} for part in parts]


def out_of_zsh(line, environment):
    command = ["zsh", "-f", Path(__file__).with_name("complete.zsh"), SCRIPTS["zsh"].parent, line]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=work, env=environment)
    return done.stdout


def check(shell, known):
    flags = list(known)
    offered = answers(shell, [["specdec", *words, "--"] for words in flags])
    for words, found in zip(flags, offered):
        expected = {flag for flag in known[words] if flag.startswith("--")}
        missing = expected - found
        expect(not missing, f"{shell}: all {len(expected)} flags of specdec {' '.join(words)} {missing or ''}")
        strange = {word for word in found if word.startswith("--")} - expected - known[()]
        expect(not strange, f"{shell}: and no others {strange or ''}")
    groups = [words for words in known if any(other[:-1] == words for other in known if other)]
    for words, found in zip(groups, answers(shell, [["specdec", *words, ""] for words in groups])):
        below = {other[-1] for other in known if other and other[:-1] == words}
        expect(below <= found, f"{shell}: the commands of specdec {' '.join(words)} {below - found or ''}")
    check_values(shell)


def check_values(shell):
    questions = {
        ("specdec", "validate", "--split", ""): {"holdout", "train", "all"},
        ("specdec", "validate", "--verify", "c"): {"coupled"},
        ("specdec", "--log-format", "json", "data", "ingest", "--order", ""): {"given", "shuffle"},
        ("specdec", "data", "ingest", "x.jsonl", "--target", "data", "--order", "s"): {"shuffle"},
        ("specdec", "monitor", "check", "--fail-on", ""): {"warn", "drift", "stale"},
        ("specdec", "distill", "--draft", "p"): {"prune:"},
        ("specdec", "package", "--quantise", "fp8,i"): {"fp8,int8"},
        ("specdec", "completion", ""): {"bash", "zsh", "fish"},
        ("specdec", "serve", "--device", "cp"): {"cpu"},
    }
    if shell != "fish":
        questions[("specdec", "package", "--quantise", "fp8,i")] = {"fp8,int8"} if shell == "bash" else {"int8"}
    for words, found in zip(questions, answers(shell, [list(words) for words in questions])):
        expect(questions[words] <= found, f"{shell}: {' '.join(words)}: {sorted(questions[words])} {sorted(found)[:9]}")
    (work / "a folder").mkdir(exist_ok=True)
    (work / "a_file.toml").touch()
    files, folders = answers(shell, [["specdec", "--config", "a"], ["specdec", "validate", "--data", "a"]])
    if shell == "bash":  # for a path, bash only asks readline to complete files or folders
        expect(files == {"option default"} and folders == {"option dirnames"}, f"bash: paths {files} {folders}")
        equals = answers(
            shell, [["specdec", "validate", "--split", "=", "ho"], ["specdec", "validate", "--split", "="]]
        )
        expect(equals == [{"holdout"}, {"holdout", "train", "all"}], f"bash: --split=ho {equals}")
    else:
        expect(any("a_file.toml" in word for word in files), f"{shell}: files {files}")
        expect(any("folder" in word for word in folders), f"{shell}: folders {folders}")
        # Only fish is checked. complete.zsh, the script with which this test queries zsh, prints matches instead of
        # adding them, so zsh finds no folder and offers files, too.
        strange = shell == "fish" and any("a_file" in word for word in folders)
        expect(not strange, f"{shell}: no files where a folder is wanted")


try:
    known = commands()
    expect(len(known) > 30 and ("package", "push") in known, f"--help shows {len(known)} commands")
    for shell, script in SCRIPTS.items():
        _, printed, _ = run("completion", shell)
        expect(script.read_text() == printed, f"{script.relative_to(BUILD)} is what specdec completion {shell} prints")
        if shutil.which(shell):
            check(shell, known)
        else:
            print(f"SKIPPED: {shell} is not installed")
            names = {flag for flags in known.values() for flag in flags if flag.startswith("--")}
            missing = {
                name
                for name in names
                if f"'{name}" not in printed and f"*{name}" not in printed and f" -l {name[2:]} " not in printed
            }
            expect(not missing, f"the script for {shell} has all {len(names)} flags {missing or ''}")
    done = subprocess.run([str(SPECDEC), "completion", "tcsh"], capture_output=True, text=True)
    expect(done.returncode == 2 and "tcsh" in done.stderr, "another shell is refused")
finally:
    shutil.rmtree(work, ignore_errors=True)
