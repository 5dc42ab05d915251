#!/usr/bin/env python3
"""Evaluates expressions of templates with jinja2 and writes tests/text/golden/expressions.json.

Made with jinja2 3.1.6, Python 3.11. The build does not run it; run it by hand when an expression is added:

    python tests/text/make_expression_goldens.py

The file has the variables of the expressions, and the text of each expression, or null if jinja2 refuses it.
"""

import json
import pathlib

import jinja2

VARIABLES = {
    "n": 7,
    "x": 2.5,
    "big": 1e20,
    "s": "héllo",
    "l": [1, 2.0, "a'b", None, True],
    "d": {"a": 1e20, "b": "c"},
    "t": "%s",
}

EXPRESSIONS = r"""
"%s" % x
"%s" % big
"%s" % "a"
"%s" % none
"%s" % true
"%s" % [1, 2]
"%s" % l
"%s" % d
"%s %s" % (1, "b")
"%s" % (1,)
"%s" % n
"%d" % n
"%d" % 2.7
"%d" % -2.7
"%d" % true
"%5d|%-5d|%05d|%+d|% d" % (1, 2, 3, 4, 5)
"%05d" % -3
"%.3d" % 7
"%i %u" % (3, 4)
"%.2f" % 3.14159
"%.2f" % n
"%.0f" % 2.5
"%f" % 1e20
"%8.3f|%-8.3f|%08.3f|%+.1f" % (1.5, 1.5, -1.5, 1.5)
"%e" % 12345.678
"%.0e" % 12345.678
"%E" % 0.00001
"%g %g %g %g" % (0.0001, 0.00001, 123456, 1234567)
"%g" % 1e20
"%.3g" % 3.14159
"%G" % 1e-10
"%#g" % 1.0
"%x %X %o" % (255, 255, 8)
"%#x %#o" % (255, 8)
"%x" % -255
"%c%c" % (65, "b")
"%r" % "it's"
"%r" % x
"%r" % big
"%a" % s
"%10s|%-10s|" % ("a", "b")
"%.2s" % "abc"
"%.2s" % s
"%%" % ()
"100%% of %s" % "a"
"%(a)s and %(b)s" % d
"%(a).1f" % {"a": 2}
"%*d" % (5, 42)
"%-*d|" % (5, 42)
"%.*f" % (2, 3.14159)
"%ld" % 5
"abc" % []
"abc" % ()
"abc" % {}
"abc" % "x"
"%s" % ()
"%d" % "x"
"%s %s" % "x"
"%y" % 1
"%" % 1
"%(zz)s" % d
"%s" % undefined_name
7 % 3
-7 % 3
7 % -3
7.5 % 2
-7.5 % 2
7 % 2.5
true % 2
n % 2 == 1
x ~ ""
big ~ "a"
1.0 ~ 2
none ~ true ~ 1.5
l ~ ""
d ~ ""
"a" ~ n * 2
"a" ~ n + 1 if false else "b" ~ x
"a" ~ [1.5, 2]
(1.5, 2) ~ ""
(1.0,) ~ ""
undefined_name ~ "a"
big
x
-0.0 * 1
1e16
123456789012345.6
0.1 + 0.2
1e-5
1/3
l
d
[1.5]
(1.5,)
(1, "a")
{"a": [1.5, {"b": 2e30}]}
[1e20, 0.1]
["a", "b"]
big|string
l|string
l|e
"<a href='x'>\"&/"|e
"<>"|escape|length
1.5|e
"one two,three_4"|wordcount
"a-b c'd"|wordcount
""|wordcount
"%s=%s"|format("a", 1.5)
"%s"|format(1e20)
"%(a)s"|format(a=2)
"%.1f"|format(2.25)
["a", 1.5, 1e20]|join(",")
big|int
"%s" % (big|int)
"%s%s" % ("a", "b") ~ "c"
"a" ~ "%s" % "b"
"%s" % "a" * 2
"%s" % x + "b"
"%d%%" % 50
"%s" % "a"|upper
"%s" % ("a"|upper)
"%s" % t
t % x
(t ~ "!") % x
10 % 3 * 2
2 * 7 % 4
2 ** 3 % 3
1e20 ~ "a"
-1e20 ~ "a"
[1e20, 1] ~ "" ~ 1e-7
"abc"|join("-")
[{"a": 1.5}, {"a": {"b": 2}}]|join(attribute="a")
[[1, 2], [3, 4]]|join("+", attribute=1)
[]|join
l|join("|")
d|join(",")
"%s" % 1e20
1e-5
{"a": 1e20}
"%(a)s"|format(d)
"%s %s"|format(1)
(1e20, 2)|length
"%s" % range(3)|list
-5 % 3.0
5 % 0
"""

environment = jinja2.Environment()
rows = []
for expression in EXPRESSIONS.strip().split("\n"):
    try:
        text = environment.from_string("{{ " + expression + " }}").render(**VARIABLES)
    except Exception:
        text = None
    rows.append([expression, text])
out = pathlib.Path(__file__).resolve().parent / "golden" / "expressions.json"
lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
variables = json.dumps(VARIABLES, ensure_ascii=False)
out.write_text('{"variables": ' + variables + ',\n "rows": [\n' + lines + "\n]}\n")
