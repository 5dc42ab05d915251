"""For a minute, sends ten times as many requests as the server can answer. Refusals must have a Retry-After, batches
must stay full, and memory, descriptors and queues must not grow. Goodput per processor second must stay above 0.6 of
its peak. Requests of a second tenant must wait only for a place in the batch, not for the first tenant's queue."""

from load_run import expect_flat, run_load
from specdec_run import expect

MAX_BATCH = 8
figures = run_load(
    "overload",
    24,
    "--seconds",
    60,
    "--peak-seconds",
    8,
    "--answer",
    160,
    "--max-batch",
    MAX_BATCH,
    "--factor",
    10,
    "--flags",
    "--queue-limit 64",
)
over, other = figures["overload"], figures["other"]
expect(over["statuses"].get("429", 0) > over["statuses"]["200"], f"it was an overload: {over['statuses']}")
expect(
    figures["only_429_503"] and figures["without_retry_after"] == 0,
    "every request is answered, or refused with 429 or 503 and Retry-After",
)
expect(figures["batch_size"] > 0.9 * MAX_BATCH, f"batches stay full: {figures['batch_size']:.2f} of {MAX_BATCH}")
expect(
    figures["goodput_to_peak_by_processor_time"] > 0.6,
    f"goodput stays: {figures['goodput_to_peak_by_processor_time']:.2f} of the peak, by processor time",
)
expect(
    set(other["statuses"]) == {"200"} and not other["lost"] and other["requests"] >= 10,
    f"the other tenant is never refused: {other['statuses']}",
)
waits = other["answers_of_the_flood_while_it_waited"]
expect(waits["p90"] <= 3 * MAX_BATCH, f"and waits for a place in the batch, not for the flood: {waits} answers")
expect_flat(figures)
