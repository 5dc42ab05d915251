"""Sends a mixture of requests for two minutes (SPECDEC_SOAK_SECONDS): streams, whole answers, grammars, clients that
disconnect, bad requests, and draft swaps. No request may be lost, memory and descriptors must not grow, and requests
with the same seed must always get the same text."""

import os

from load_run import expect_flat, run_load
from specdec_run import expect

SECONDS = int(os.environ.get("SPECDEC_SOAK_SECONDS", 120))
figures = run_load("soak", 12, "--seconds", SECONDS, "--requests", 12 * SECONDS, "--answer", 700, "--patience", 0.06)
expect(
    not figures["lost"] and set(figures["statuses"]) <= {"0", "200", "400", "429"},
    f"nothing is lost: {figures['statuses']} {figures['lost']}",
)
expect(figures["statuses"].get("0", 0) <= figures["cancelled"], "only clients that left have no answer")
expect(figures["cancelled"] > SECONDS / 4, f"clients left: {figures['cancelled']}")
orders = figures["orders"]
expect(
    set(orders) <= {"load 200", "share 200", "promote 200", "drop 200"} and orders["promote 200"] > SECONDS / 20,
    f"drafts were swapped: {orders}",
)
expect(
    figures["seeded_answers"] > SECONDS and figures["seeded_texts_changed"] == 0,
    f"{figures['seeded_answers']} seeded texts are what they were",
)
expect_flat(figures)
