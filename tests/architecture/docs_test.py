#!/usr/bin/env python3
"""docs_test.py: checks the Markdown pages against the tree. Links between pages must have an existing target. The pages
for contributors (CONTRIBUTING.md, docs/contributing) must name only paths, identifiers, tests and make targets that
exist. If names follow a path in the same table cell or list item, the file at the path must contain them."""

import fnmatch
import functools
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = "base cli cmake data deploy distill docs engine examples monitor net rust tests text .github".split()
SOURCES = (".h", ".cpp", ".cu", ".py", ".txt", ".cmake", ".sh", ".rs", ".json")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")


class Tree:
    def __init__(self, root=ROOT):
        self.root = root

    @functools.cached_property
    def files(self):
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=self.root, capture_output=True
        )
        if listed.returncode == 0:
            found = listed.stdout.decode().rstrip("\0").split("\0")
        else:  # the tree comes from a source archive
            found = [str(f.relative_to(self.root)) for folder in FOLDERS for f in (self.root / folder).rglob("*")]
            found += [f.name for f in self.root.iterdir()]
        return [f for f in found if (self.root / f).is_file()]

    @functools.cached_property
    def folders(self):
        return {str(parent) for f in self.files for parent in Path(f).parents}

    @functools.cache  # noqa: B019
    def text(self, path):
        return (self.root / path).read_text(errors="replace")

    @functools.cached_property
    def words(self):
        """The set of all words in the source files."""
        found = set()
        for file in self.files:
            if file.endswith(SOURCES) or "." not in Path(file).name:
                if not file.startswith("tests/compat/"):
                    found.update(re.findall(r"\w+", self.text(file)))
        return found

    @functools.cached_property
    def tests(self):
        """The names of all GoogleTests, as Suite.Name."""
        pattern = re.compile(r"^\s*TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", re.M)
        return {".".join(m) for f in self.files if f.endswith("_test.cpp") for m in pattern.findall(self.text(f))}

    @functools.cached_property
    def targets(self):
        return set(re.findall(r"^([a-z][\w -]*):", self.text("Makefile"), re.M)) | set(
            " ".join(re.findall(r"^\.PHONY:(.*)$", self.text("Makefile"), re.M)).split()
        )

    def knows(self, name):
        """Returns whether the name is a word of a source file, the name of a file, or an end-to-end test in CTest."""
        return name in self.words or any(Path(f).stem == name.removeprefix("e2e_") for f in self.files)

    def has(self, path):
        """Returns whether the path exists. A part in capitals stands for any name."""
        path = re.sub(r"(?<![^/])[A-Z]+(?![^/])", "*", path.rstrip("/"))
        return path in self.folders or path in self.files or bool(fnmatch.filter(self.files, path))


def anchors(text):
    """Returns the anchors of a page: explicit ones, and those that GitHub derives from headings."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.M):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-")
        number = 0
        while (name := f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(name)
    return found


def wrong_links(page, text, tree):
    for link in LINK.findall(CODE.sub("", FENCE.sub("", text))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        to = (tree.root / page).parent / path if path else tree.root / page
        if not to.exists():
            yield f"{page}: the link {link} leads nowhere"
        elif anchor and to.suffix == ".md" and anchor not in anchors(to.read_text()):
            yield f"{page}: {to.name} has no heading #{anchor}"


def path_in(code):
    """Returns the path at the beginning of `code`; "" if it does not begin with a path of the tree."""
    path = code.split(" ")[0]
    return path if "/" in path and path.split("/")[0] in FOLDERS and "…" not in path else ""


def wrong_names(page, text, tree):
    """Yields an error for each name in `code` on a page for contributors that does not exist in the tree."""
    for block in re.split(r" \| |\|\n|\n\s*\n|\n(?=[*\d])", FENCE.sub("", text)):
        file = None
        for code in CODE.findall(block):
            if path := path_in(code):
                if not tree.has(path):
                    yield f"{page}: {path} is not there"
                file = path if path in tree.files else None
            elif re.fullmatch(r"[A-Z]\w*\.[A-Z]\w+", code):
                if code not in tree.tests:
                    yield f"{page}: no test is called {code}"
            elif target := re.match(r"make ([a-z][a-z-]*)", code):
                if target[1] not in tree.targets:
                    yield f"{page}: Makefile has no target {target[1]}"
            elif re.fullmatch(r"\w+(\(\))?", code) and (
                code.endswith("()") or "_" in code or re.search("[a-z][A-Z]", code)
            ):
                name = code.removesuffix("()")
                if file and page.endswith("operations.md") and not re.search(rf"\b{name}\b", tree.text(file)):
                    yield f"{page}: {file} has no {name}"
                elif not tree.knows(name):
                    yield f"{page}: no source has {name}"


def is_for_contributors(page):
    return page == "CONTRIBUTING.md" or page.startswith("docs/contributing/")


def check_the_check(tree):
    """Checks that these functions find each of the mistakes below."""
    for text, says in (
        ("see [that](no-such-page.md)", "leads nowhere"),
        ("see [that](CONTRIBUTING.md#no-such-heading)", "no heading"),
        ("in `engine/kernels/nothing.cpp`", "is not there"),
        ("in `tests/fuzz/nothing/NAME`", "is not there"),
        ("`tests/nothing.py --seed N`", "is not there"),
        ("`Ops.Nothing`", "no test"),
        ("`make nothing`", "no target"),
        ("`no_such_function_at_all()`", "no source"),
        ("| `engine/kernels/ops_ref.cpp` `launch_graph` |", "ops_ref.cpp has no launch_graph"),
    ):
        # This file is a source too, so it contains the invented names; they must not count as known words.
        tree.words.discard("no_such_function_at_all")
        found = [*wrong_links("README.md", text, tree), *wrong_names("docs/contributing/operations.md", text, tree)]
        assert any(says in problem for problem in found), (text, found)
    for text in (
        "`tests/fuzz/seeds/TARGET`",
        "| `engine/kernels/ops_ref.cpp` `rms_norm` |",
        "`make test`",
        "`.ci/run`",
    ):
        assert not list(wrong_names("docs/contributing/operations.md", text, tree)), text


def main():
    tree = Tree()
    check_the_check(tree)
    found = []
    pages = [f for f in tree.files if f.endswith(".md") and not f.startswith("tests/compat/")]
    for page in pages:
        found += wrong_links(page, tree.text(page), tree)
        if is_for_contributors(page):
            found += wrong_names(page, tree.text(page), tree)
    print("\n".join([*found, f"{len(pages)} pages, {len(found)} mistakes"]))
    return 1 if found else 0


sys.exit(main())
