"""Reads the commands and flags of the program from its --help alone, so that generated files (shell completion, manual
pages) can be compared with what a user reads."""

import re

from specdec_run import run


def commands():
    """Returns a map from each command, a tuple of words, to its flags. The empty tuple is the program itself."""
    found, to_do = {}, [()]
    while to_do:
        words = to_do.pop(0)
        _, text, _ = run(*words, "--help")
        text = re.split(r"^Examples?:", text, maxsplit=1, flags=re.M)[0]
        names = re.findall(r"^  (-[^ ]+)", text, re.M)
        found[words] = {name.split("{")[0] for group in names for name in group.split(",")}
        below = re.split(r"^Subcommands:$", text, maxsplit=1, flags=re.M)[1:]
        to_do += [(*words, name) for name in re.findall(r"^  ([a-z]+)[ ,]", below[0], re.M)] if below else []
    return found
