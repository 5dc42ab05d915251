#!/usr/bin/env python3
"""redaction_figures.py SPECDEC SHARED: measures the recall of `data ingest`'s redaction on examples from other
projects' generators, and its precision on real text (SHARED/data/gpteacher and gsm8k), where other projects' validators
judge each redacted text.

    python3 -m venv env && env/bin/pip install faker==40.1.0 phonenumbers==9.0.43 python-stdnum==2.2
    env/bin/python tests/bench/redaction_figures.py build/bin/specdec ../shared
"""

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import random
import re
import secrets
import string
import subprocess
import sys
import tempfile

import phonenumbers
from faker import Faker
from stdnum import iban, luhn

PER_KIND = 1000
LOCALES = ["en_US", "en_GB", "de_DE", "fr_FR", "it_IT", "es_ES", "nl_NL", "pl_PL"]
rng = random.Random(7)
Faker.seed(7)
fakers = [Faker(locale) for locale in LOCALES]


def some(alphabet, n):
    return "".join(rng.choice(alphabet) for _ in range(n))


def email():
    f = rng.choice(fakers)
    return rng.choice([f.email, f.company_email, f.ascii_safe_email, f.free_email])()


def card():
    number = rng.choice(fakers).credit_card_number(
        card_type=rng.choice(["visa16", "mastercard", "amex", "discover", "visa13", "jcb16"])
    )
    if len(number) == 16 and rng.random() < 0.6:
        return rng.choice(" -").join(number[i : i + 4] for i in range(0, 16, 4))
    return number


def bank_account():
    number = rng.choice(fakers).iban()
    return " ".join(number[i : i + 4] for i in range(0, len(number), 4)) if rng.random() < 0.5 else number


def address():
    f = rng.choice(fakers)
    return f.ipv4_public() if rng.random() < 0.6 else f.ipv6()


def phone():
    # Changes the last digits of example numbers from libphonenumber's metadata, and writes them in the formats that
    # people use.
    while True:
        region = rng.choice(
            ["US", "GB", "DE", "FR", "IT", "ES", "NL", "PL", "CA", "CH", "AT", "SE", "IN", "BR", "AU", "JP"]
        )
        kind = rng.choice([phonenumbers.PhoneNumberType.MOBILE, phonenumbers.PhoneNumberType.FIXED_LINE])
        number = phonenumbers.example_number_for_type(region, kind)
        number.national_number = number.national_number // 10000 * 10000 + rng.randrange(10000)
        if phonenumbers.is_valid_number(number):
            formats = [
                phonenumbers.PhoneNumberFormat.INTERNATIONAL,
                phonenumbers.PhoneNumberFormat.INTERNATIONAL,
                phonenumbers.PhoneNumberFormat.E164,
            ]
            # Uses the form without a country code only if it has brackets, dashes or a leading zero, because bare
            # digits are not recognisable as a telephone number.
            national = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL)
            if region in ("US", "CA", "FR") or (region in ("DE", "AT") and national.startswith("0")):
                formats.append(phonenumbers.PhoneNumberFormat.NATIONAL)
            return phonenumbers.format_number(number, rng.choice(formats))


def key():
    alnum = string.ascii_letters + string.digits
    return rng.choice(
        [
            lambda: "sk-" + some(alnum, 48),
            lambda: "sk-proj-" + some(alnum + "-_", 74),
            lambda: "sk-ant-api03-" + some(alnum + "-_", 93),
            lambda: "AKIA" + some(string.ascii_uppercase + "234567", 16),
            lambda: "ghp_" + some(alnum, 36),
            lambda: "github_pat_" + some(alnum, 22) + "_" + some(alnum, 59),
            lambda: "glpat-" + some(alnum + "-_", 20),
            lambda: "xoxb-" + some(string.digits, 12) + "-" + some(alnum, 24),
            lambda: "AIza" + some(alnum + "-_", 35),
            lambda: "hf_" + some(string.ascii_letters, 34),
            lambda: "npm_" + some(alnum, 36),
            lambda: "pypi-AgEIcHlwaS5vcmc" + some(alnum + "-_", 150),
            lambda: "sk_live_" + some(alnum, 24),
            lambda: "rk_test_" + some(alnum, 24),
            lambda: "SG." + some(alnum + "-_", 22) + "." + some(alnum + "-_", 43),
            lambda: "dop_v1_" + secrets.token_hex(32),
        ]
    )()


def web_token():
    def part(value):
        return base64.urlsafe_b64encode(value).rstrip(b"=").decode()

    head = part(json.dumps({"alg": "HS256", "typ": "JWT"}).encode())
    body = part(
        json.dumps(
            {
                "sub": str(rng.randrange(10**9)),
                "name": rng.choice(fakers).name(),
                "iat": 1767225600 + rng.randrange(10**6),
            }
        ).encode()
    )
    return f"{head}.{body}." + part(
        hmac.new(some(string.printable, 20).encode(), f"{head}.{body}".encode(), hashlib.sha256).digest()
    )


def token():
    # Makes secrets without a telling prefix (such as sk-), in the forms in which people paste them: alone, after a
    # label, or in a header.
    alnum = string.ascii_letters + string.digits
    secret = rng.choice(
        [
            lambda: some(alnum, 24),
            lambda: some(alnum + "+/", 40),
            lambda: base64.b64encode(rng.randbytes(64)).decode(),
            lambda: some(alnum + "-_", 43),
            lambda: some("0123456789abcdef", 32),
            lambda: some(string.ascii_lowercase + string.digits, 32),
            lambda: some(string.ascii_uppercase + "234567", 32),
            lambda: f"{rng.randrange(10**8, 10**10)}:" + some(alnum + "-_", 35),
        ]
    )()
    return secret


def disguised():
    # Makes card numbers, e-mail addresses and bank accounts with the unusual separators, digits and escapes of real
    # texts.
    digits = "".join(c for c in card() if c.isdigit())
    groups = [digits[i : i + 4] for i in range(0, len(digits), 4)]
    if len(groups[-1]) < 3:
        groups[-2:] = [groups[-2] + groups[-1]]
    wide = str.maketrans("0123456789", "\uff10\uff11\uff12\uff13\uff14\uff15\uff16\uff17\uff18\uff19")
    return rng.choice(
        [
            lambda: "\u00a0".join(groups),
            lambda: ".".join(groups),
            lambda: "\u2011".join(groups),
            lambda: digits.translate(wide),
            lambda: email().replace("@", "%40"),
            lambda: email().replace("@", "\u200b@"),
            lambda: bank_account().lower(),
        ]
    )()


def ssn():
    return (
        f"{rng.choice([*range(1, 666), *range(667, 900)]):03}-{rng.randrange(1, 100):02}-{rng.randrange(1, 10000):04}"
    )


NAMES = {"token": {"key"}, "disguised": {"card", "email", "iban"}}
KINDS = {
    "token": token,
    "disguised": disguised,
    "ssn": ssn,
    "email": email,
    "card": card,
    "iban": bank_account,
    "ip": address,
    "phone": phone,
    "key": key,
    "jwt": web_token,
}
FRAMES = [
    "{}",
    "Please note {} for later.",
    'It is "{}".',
    "({})",
    "contact: {}, thanks",
    "{}\nsecond line",
    "value={} ",
    "<b>{}</b>",
    "Ich heiße Jörg, {} ist es.",
    "a: {}; b: none",
]


def ingest(specdec, sources, out):
    run = subprocess.run(
        [specdec, "-q", "data", "ingest", *sources, "--records", "--no-dedup", "--out", out],
        capture_output=True,
        text=True,
    )
    if run.returncode:
        sys.exit(run.stderr)
    with open(os.path.join(out, "records.jsonl"), encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def content(record):
    if "messages" in record:
        return "\n\x00".join(m["content"] for m in record["messages"])
    return record.get("text") or record["prompt"] + "\n\x00" + record["response"]


def recall(specdec, work):
    rows, made = [], []
    for kind, make in KINDS.items():
        for i in range(PER_KIND):
            secret = make()
            around = rng.choice(fakers[:2])
            text = around.sentence() + " " + FRAMES[i % len(FRAMES)].format(secret) + " " + around.sentence()
            rows.append(json.dumps({"id": f"{kind}-{i}", "text": text}))
            made.append((kind, secret))
    path = os.path.join(work, "secrets.jsonl")
    with open(path, "w") as f:
        f.write("\n".join(rows) + "\n")
    records = {r["id"]: r for r in ingest(specdec, [path], os.path.join(work, "recall"))}
    found, named, missed, counter = {}, {}, {}, {}
    for kind, secret in made:
        number = counter.get(kind, 0)
        counter[kind] = number + 1
        record = records[f"{kind}-{number}"]
        # The secret must be removed completely: not even half of the secret may remain.
        digits = re.sub(r"[^A-Za-z0-9]", "", secret)
        left = re.sub(r"[^A-Za-z0-9]", "", record["text"])
        gone = (
            (not digits or digits not in left)
            and secret not in record["text"]
            and (len(digits) < 6 or digits[-6:] not in left)
        )
        found[kind] = found.get(kind, 0) + gone
        named[kind] = named.get(kind, 0) + bool(NAMES.get(kind, {kind}) & record.get("redactions", {}).keys())
        if not gone:
            missed.setdefault(kind, []).append(secret)
    for kind in KINDS:
        print(
            f"recall    {kind:9} {found[kind] / PER_KIND:.4f}  under its own name "
            f"{named[kind] / PER_KIND:.4f}  missed: {missed.get(kind, [])[:5]}"
        )
    total = sum(found.values()) / (PER_KIND * len(KINDS))
    print(f"recall    all       {total:.4f} of {PER_KIND * len(KINDS)}")
    return min(v / PER_KIND for v in found.values()), total


def judge(kind, text):
    if kind == "email":
        return re.fullmatch(r"[^@\s]+@[^@\s]+\.[A-Za-z]{2,}", text) is not None
    if kind == "iban":
        return iban.is_valid(text)
    if kind == "card":
        return luhn.is_valid(re.sub(r"\D", "", text)) and all(len(g) >= 3 for g in re.split(r"\D", text))
    if kind == "ssn":
        return re.fullmatch(r"\d{3}.\d\d.\d{4}", text) is not None
    if kind == "ip":
        try:
            ipaddress.ip_address(text)
            return True
        except ValueError:
            return False
    if kind == "phone":
        if re.fullmatch(r"([01]\d|2[0-3])[0-5]\d-([01]\d|2[0-3])[0-5]\d", text):
            return False  # a range of hours, not a telephone number
        for region in ("US", "GB", "DE", "FR"):
            try:
                if phonenumbers.is_possible_number(phonenumbers.parse(text, region)):
                    return True
            except phonenumbers.NumberParseException:
                pass
        return False
    return len(set(text)) >= 10  # short or repetitive texts are no keys or tokens


def precision(specdec, shared, work):
    sources = [
        os.path.join(shared, "data", name)
        for name in (
            "gpteacher/codegen-instruct.json",
            "gpteacher/roleplay-simple-deduped-roleplay-instruct.json",
            "gpteacher/toolformer-dedupe-only-dataset.json",
        )
    ]
    # gsm8k's rows are {question, answer}; they are converted to prompts and completions.
    for name in ("train", "test"):
        path = os.path.join(work, f"gsm8k-{name}.jsonl")
        with open(os.path.join(shared, "data/gsm8k", name + ".jsonl")) as f, open(path, "w") as out:
            for line in f:
                row = json.loads(line)
                out.write(json.dumps({"prompt": row["question"], "completion": row["answer"]}) + "\n")
        sources.append(path)
    after = ingest(specdec, sources, os.path.join(work, "redacted"))
    run = subprocess.run(
        [
            specdec,
            "-q",
            "data",
            "ingest",
            *sources,
            "--records",
            "--no-dedup",
            "--no-redact",
            "--out",
            os.path.join(work, "plain"),
        ],
        capture_output=True,
        text=True,
    )
    if run.returncode:
        sys.exit(run.stderr)
    with open(os.path.join(work, "plain", "records.jsonl"), encoding="utf-8") as f:
        before = [json.loads(line) for line in f]
    total, good, wrong, characters = 0, 0, [], 0
    for a, b in zip(before, after):
        characters += len(content(a))
        if "redactions" not in b:
            continue
        pieces = re.split(r"(\[(?:EMAIL|IBAN|CARD|SSN|IP|PHONE|KEY|JWT)\])", content(b))
        pattern = "".join("(.+?)" if i % 2 else re.escape(p) for i, p in enumerate(pieces))
        match = re.fullmatch(pattern, content(a), re.S)
        if not match:
            sys.exit("cannot align a redacted row with its original")
        for tag, original in zip(pieces[1::2], match.groups()):
            kind = tag[1:-1].lower()
            if original == tag:
                continue  # the tag was in the original text and replaces nothing
            total += 1
            ok = judge(kind, original)
            good += ok
            if not ok:
                wrong.append((kind, original))
            print(f"found     {kind:6} {original!r}{'' if ok else '   <- judged wrong'}")
    print(
        f"precision {good / max(total, 1):.4f}: {good} of {total} finds in {len(before)} rows, "
        f"{characters / 1e6:.1f} million characters; wrong: {wrong[:10]}"
    )
    return good / max(total, 1)


def main():
    specdec, shared = sys.argv[1], sys.argv[2]
    with tempfile.TemporaryDirectory() as work:
        least, total = recall(specdec, work)
        exact = precision(specdec, shared, work)
    print(
        f"{'ok' if total >= 0.99 and exact >= 0.95 else 'BELOW THE MARK'}: recall {total:.4f} (least of a "
        f"kind {least:.4f}), precision {exact:.4f}"
    )


main()
