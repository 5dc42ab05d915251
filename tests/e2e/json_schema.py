"""Implements the part of JSON Schema 2020-12 that docs/openapi.json uses. Checks values against a schema, generates
values that fit a schema, and changes such values so that they violate the schema."""

import re

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
TEXTS = [
    "",
    "a",
    "one two",
    "Ünï→🙂",
    "\u200b\ufeff",
    "</s><s>",
    "\\\"'{}[]",
    "\n\t\r",
    "0",
    "null",
    "a" * 40,
    "\u0001\u007f",
]
STRANGERS = [
    True,
    False,
    None,
    0,
    -1,
    7,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    1.5,
    -0.0,
    1e308,
    5e-324,
    -1e-310,
    1e-40,
    1e-38,
    "",
    "x",
    "\u0000",
    [],
    [0],
    [[]],
    [None],
    {},
    {"a": 1},
    {"type": "x"},
]


def is_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name]) and (name != "boolean" or isinstance(value, bool))


def same(a, b):
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def listed(x):
    return x if isinstance(x, list) else [x]


class Schemas:
    """Checks, makes and spoils values. `root` is the document that $ref points into. The document may allow values that
    the model under test refuses: `narrow` then maps the name of a property to a stricter schema from which its values
    are made."""

    def __init__(self, root, narrow=None):
        self.root, self.narrow = root, narrow or {}

    def look_up(self, schema):
        while "$ref" in schema:
            place = self.root
            for part in schema["$ref"].removeprefix("#/").split("/"):
                place = place[part]
            schema = place
        return schema

    def problem(self, schema, value, where="$"):
        """Returns a description of what in `value` violates the schema, or None if nothing does."""
        s = self.look_up(schema)
        if "type" in s and not any(is_type(value, t) for t in listed(s["type"])):
            return f"{where}: {type(value).__name__} instead of {s['type']}"
        if "enum" in s and not any(same(value, e) for e in s["enum"]) or "const" in s and not same(value, s["const"]):
            return f"{where}: {value!r} is none of {s.get('enum', s.get('const'))}"
        if "anyOf" in s and all(self.problem(one, value, where) for one in s["anyOf"]):
            return f"{where}: {value!r} fits nothing of anyOf"
        for one in s.get("allOf", []):
            if found := self.problem(one, value, where):
                return found
        if is_type(value, "number"):
            bounds = (
                ("minimum", lambda a, b: a < b),
                ("maximum", lambda a, b: a > b),
                ("exclusiveMinimum", lambda a, b: a <= b),
                ("exclusiveMaximum", lambda a, b: a >= b),
            )
            for word, outside in bounds:
                if word in s and outside(value, s[word]):
                    return f"{where}: {value} is outside of {word} {s[word]}"
        if isinstance(value, str):
            if not s.get("minLength", 0) <= len(value) <= s.get("maxLength", len(value)) or not re.search(
                s.get("pattern", ""), value
            ):
                return f"{where}: a text that does not fit"
        if isinstance(value, list):
            if not s.get("minItems", 0) <= len(value) <= s.get("maxItems", len(value)):
                return f"{where}: {len(value)} items"
            for i, item in enumerate(value):
                if found := self.problem(s.get("items", {}), item, f"{where}[{i}]"):
                    return found
        if isinstance(value, dict):
            if len(value) > s.get("maxProperties", len(value)) or any(
                key not in value for key in s.get("required", [])
            ):
                return f"{where}: missing or too many properties: {sorted(value)}"
            for key, item in value.items():
                if found := self.problem(self.property(s, key), item, f"{where}.{key}"):
                    return found
        return None

    def property(self, s, key):
        for pattern, schema in s.get("patternProperties", {}).items():
            if re.search(pattern, key):
                return schema
        known = s.get("properties", {})
        rest = s.get("additionalProperties", True)
        return known[key] if key in known else {} if rest is True else {"enum": []} if rest is False else rest

    def make(self, rng, schema, key=None):
        s = self.look_up(self.narrow.get(key, schema))
        for word in ("const", "enum", "examples"):
            if word in s:
                return s[word] if word == "const" else rng.choice(s[word])
        if "anyOf" in s:
            return self.make(rng, rng.choice(s["anyOf"]))
        kind = rng.choice(listed(s["type"])) if "type" in s else rng.choice(["string", "integer", "boolean", "null"])
        if kind == "null":
            return None
        if kind == "boolean":
            return rng.random() < 0.5
        if kind == "integer":
            low, high = s.get("minimum", -1000), s.get("maximum", 1000)
            return rng.choice([low, high, rng.randint(low, high)])
        if kind == "number":
            low, high = (
                s.get("minimum", s.get("exclusiveMinimum", -10)),
                s.get("maximum", s.get("exclusiveMaximum", 10)),
            )
            extremes = [
                x
                for x in (5e-324, -1e-310, 1e-40, 1.18e-38, -1.18e-38, 1e-9)
                if not self.problem({**s, "type": "number"}, x)
            ]
            inside = (
                [rng.uniform(low, high), (low + high) / 2]
                + [s[w] for w in ("minimum", "maximum") if w in s]
                + extremes[:2]
            )
            return rng.choice(inside)
        if kind == "string":
            fitting = [t for t in TEXTS if not self.problem(s, t)]
            return rng.choice(fitting)
        if kind == "array":
            least = s.get("minItems", 0)
            return (
                [
                    self.make(rng, s["items"])
                    for _ in range(rng.randint(least, min(least + 3, s.get("maxItems", least + 3))))
                ]
                if "items" in s
                else []
            )
        value = {}
        known = list(s.get("properties", {}))
        share = rng.choice([0.05, 0.2, 0.6])
        for name in known:
            if name in s.get("required", []) or rng.random() < share:
                value[name] = self.make(rng, s["properties"][name], name)
        for pattern in s.get("patternProperties", {}):
            for _ in range(rng.randint(0, 4)):
                value[str(rng.randint(0, 250))] = self.make(rng, s["patternProperties"][pattern])
        strangers = [x for x in STRANGERS if not self.problem(self.property(s, "x_unknown"), x)]
        if strangers and rng.random() < 0.2:
            value["x_unknown"] = rng.choice(strangers)
        return value

    def spoil(self, rng, schema, value):
        """Returns `value` with one change that violates the schema, or None if 50 tries find none."""
        for _ in range(50):
            spoilt = self.spoil_at(rng, self.look_up(schema), value)
            if self.problem(schema, spoilt):
                return spoilt
        return None

    def spoil_at(self, rng, s, value):
        s = self.look_up(s)
        if isinstance(value, dict) and value and rng.random() < 0.85:
            out, key = dict(value), rng.choice(list(value))
            if key in s.get("required", []) and rng.random() < 0.2:
                del out[key]
            else:
                out[key] = self.spoil_at(rng, self.property(s, key), value[key])
            return out
        if isinstance(value, list) and value and rng.random() < 0.5:
            out = list(value)
            i = rng.randrange(len(out))
            out[i] = self.spoil_at(rng, s.get("items", {}), out[i])
            return out
        choices = list(STRANGERS)
        for one in [s, *map(self.look_up, s.get("anyOf", []))]:
            choices += [
                one[w] + d
                for w, d in (("minimum", -1), ("maximum", 1), ("exclusiveMinimum", 0), ("exclusiveMaximum", 0))
                if w in one
            ]
            choices += ["x" * (one["maxLength"] + 1)] if one.get("maxLength", 1 << 20) < 1 << 16 else []
            choices += (
                [[self.make(rng, one["items"])] * (one["maxItems"] + 1)]
                if one.get("maxItems", 1 << 20) < 1 << 12 and "items" in one
                else []
            )
        return rng.choice(choices)
