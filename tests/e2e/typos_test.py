"""Mistypes every command and every flag of the program in three ways: one letter left out, one letter doubled, two
letters swapped. Each error must name the typo and the word that was meant, end with exit code 2, and leave no file
behind."""

import concurrent.futures
import os
import subprocess
import tempfile

from specdec_run import SPECDEC, expect, run_json


def commands():
    """Returns a map from each command, a tuple of words, to its flags, which include those of the whole program."""
    _, tree = run_json("help")
    found = {}
    for command in tree["commands"]:
        names = [name for a in command["arguments"] if not a["positional"] for name in a["names"]]
        found[tuple(command["command"].split())] = [name for name in names if name.startswith("--")]
    return found


def typos(word):
    dashes = len(word) - len(word.lstrip("-"))
    name = word[dashes:]
    middle = len(name) // 2
    left_out = name[:middle] + name[middle + 1 :]
    doubled = name[: middle + 1] + name[middle:]
    swapped = name[: middle - 1] + name[middle] + name[middle - 1] + name[middle + 1 :] if len(name) > 1 else name
    return {word[:dashes] + typo for typo in (left_out, doubled, swapped) if typo and typo != name}


def answer_to(words, typo):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(SPECDEC), *words, typo],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "HOME": folder},
        )
        return done.returncode, done.stderr.strip(), os.listdir(folder)


def main():
    known, cases = commands(), []
    names = {words[: n + 1] for words in known for n in range(len(words))}
    for words in sorted(names):
        siblings = {other[-1] for other in names if other[:-1] == words[:-1]}
        cases += [(words[:-1], typo, f"'{words[-1]}'") for typo in typos(words[-1]) - siblings]
    for words, flags in sorted(known.items()):
        # Skips flags of a single letter, because their typos do not show which flag was meant.
        cases += [(words, typo, flag) for flag in flags if len(flag) > 3 for typo in typos(flag) - set(flags)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda case: answer_to(*case[:2]), cases))
    wrong, elsewhere = [], 0
    for (words, typo, meant), (code, text, left) in zip(cases, answers):
        named = code == 2 and typo in text and "\n" not in text and not left
        if not named or "did you mean" not in text:
            wrong.append(f"{' '.join(words)} {typo}: exit {code}, left {left}: {text}")
        elsewhere += f"did you mean {meant}?" not in text
    expect(len(cases) > 1000, f"{len(cases)} typos of {len(names)} commands and their flags")
    expect(
        not wrong,
        "each is named, with a suggestion, and leaves nothing behind" + "".join("\n  " + w for w in wrong[:20]),
    )
    expect(elsewhere <= len(cases) / 100, f"in all but {elsewhere} of them the suggestion is what was meant")


main()
