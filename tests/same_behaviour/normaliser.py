"""Replaces everything in the observed texts that differs between two runs of one build."""

import datetime
import json
import re
import time

from same_behaviour.rules import JSON_RULES, TEXT_RULES


class Normaliser:
    """Applies the rules of rules.py. Also replaces texts that it is taught during the run: the scratch folder, ports
    and digests of packages."""

    def __init__(self, scratch, build, version):
        self.began = time.time() - 2
        self.learnt = []
        self.learn(str(scratch), "<scratch>")  # the path differs between runs
        self.learn(str(build), "<build>")
        self.version = re.compile(
            rf"(?<![0-9.]){re.escape(version)}(?![0-9]|\.[0-9])"
        )  # does not match the "0.1.0" in "10.0.1.0"
        self.json_rules = [(re.compile(f), re.compile(k), r) for f, k, r, _ in JSON_RULES]
        self.text_rules = [(re.compile(f), re.compile(p), r) for f, p, r, _ in TEXT_RULES]

    def learn(self, text, name):
        self.learnt.append((text, name))

    def learn_digest(self, digest, name):
        """Learns a digest that depends on a time. For example, a package's manifest contains the time at which it was
        made. Also learns the short forms in which the digest is shown."""
        for length in (64, 16, 12, 8):
            self.learn(digest[:length], f"<{name}{'' if length == 64 else ':' + str(length)}>")

    def is_now(self, seconds):
        """Returns whether this Unix time is within this run. Only such times are replaced; older times, from the logs,
        are kept."""
        return self.began <= seconds <= time.time() + 2

    def value(self, file, value, path=""):
        for files, key, replacement in self.json_rules:
            if path and files.search(file) and key.search(path):
                if replacement.startswith("<whole: "):
                    return "<" + replacement.removeprefix("<whole: ")
                if value is None or isinstance(value, (bool, int, float)):
                    return replacement
        if isinstance(value, dict):
            return {k: self.value(file, v, f"{path}.{k}" if path else k) for k, v in value.items()}
        if isinstance(value, list):
            return [self.value(file, v, path + "[]") for v in value]
        return value

    def text(self, file, text):
        for old, new in self.learnt:
            text = text.replace(old, new)
        text = self.version.sub("<version>", text)
        iso = r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|&#58;|\+00:00)?"
        text = re.sub(
            iso,
            lambda m: "<now>" if self.is_now_text(m[0]) else m[0],
            text.replace("&#58;", ":") if file.endswith(".md") else text,
        )
        text = re.sub(
            r"(?<![0-9A-Fa-f.])(1[0-9]{9})([0-9]{3}|[0-9]{6}|[0-9]{9})?(\.[0-9]+)?(?![0-9A-Fa-f])",
            lambda m: "<now>" if self.is_now(int(m[1])) else m[0],
            text,
        )
        for files, pattern, replacement in self.text_rules:
            if files.search(file):
                text = pattern.sub(replacement, text)
        return text

    def is_now_text(self, text):
        digits = [int(d) for d in re.findall(r"\d+", text)][:6]
        seconds = datetime.datetime(*digits, tzinfo=datetime.UTC).timestamp()
        return self.began - (60 if len(digits) < 6 else 0) <= seconds <= time.time() + 2

    def json(self, file, value):
        return json.dumps(self.value(file, value), indent=1, sort_keys=True, ensure_ascii=False) + "\n"

    def any(self, file, text):
        """Normalises JSON (one object, one per line, or inside an HTML page) to sorted keys with one key per line, so
        that a diff shows the key. In other texts only the texts given to learn() and the text rules are replaced."""
        if file.endswith(".html"):
            return self.text(
                file,
                re.sub(
                    r'(?s)(<script type="application/json"[^>]*>)(.*?)(</script>)',
                    lambda m: m[1] + self.json(file, json.loads(m[2])) + m[3],
                    text,
                ),
            )
        try:
            return self.text(file, self.json(file, json.loads(text)))
        except ValueError:
            pass
        lines = text.splitlines()
        try:
            objects = [json.loads(line) for line in lines]
            if objects and all(isinstance(o, dict) for o in objects):
                return self.text(file, "".join(self.json(file, o) for o in objects))
        except ValueError:
            pass
        return self.text(file, text)
