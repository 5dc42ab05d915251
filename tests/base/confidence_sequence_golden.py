"""Writes golden/confidence_sequence.json: streams of values, and the two bounds that confseq gives after every value.

Needs Python 3.11, numpy 1.26.4, scipy 1.17.1, and matplotlib and multiprocess, which confseq's betting.py imports.

  pip download --no-deps --no-binary :all: confseq==0.0.11 && tar xf confseq-0.0.11.tar.gz
  PYTHONPATH=confseq-0.0.11/src python3 tests/base/confidence_sequence_golden.py
"""

import json
import os
import warnings

import numpy as np
from confseq.betting import betting_cs, betting_lower_cs
from confseq.betting_strategies import lambda_predmix_eb

warnings.simplefilter("ignore", RuntimeWarning)  # confseq divides by 0 at the end of its grid
rng = np.random.default_rng(20261122)


def beta(mean, sd, n):
    a = mean * (mean * (1 - mean) / sd**2 - 1)
    return rng.beta(a, a * (1 - mean) / mean, n)


cases = []


def case(name, x, level, breaks, truncation, stakes=(), plug_in=True):
    x = np.round(x, 4)
    bets = (
        [lambda x, m, s=s: np.repeat(s / m, len(x)) for s in stakes],
        [lambda x, m, s=s: np.repeat(s / (1 - m), len(x)) for s in stakes],
    )
    if plug_in:
        for side in bets:
            side.append(lambda x, m: lambda_predmix_eb(x, alpha=level / 2))
    shared = dict(breaks=breaks, trunc_scale=truncation, running_intersection=True)
    given = dict(lambdas_fns_positive=bets[0], lambdas_fns_negative=bets[1]) if stakes else {}
    low, high = betting_cs(x, alpha=level, **shared, **given)
    # Each end of the two-sided interval equals the end of the one-sided interval with half the error probability,
    # unless the values refute every candidate mean.
    lower = betting_lower_cs(x, alpha=level / 2, **shared, **(dict(lambdas_fns=bets[0]) if stakes else {}))
    assert np.array_equal(low, lower) != (name == "no mean is left"), name
    cases.append(
        dict(
            name=name,
            level=level,
            breaks=breaks,
            truncation=truncation,
            stakes=list(stakes),
            plug_in=plug_in,
            x=x.tolist(),
            low=low.tolist(),
            high=high.tolist(),
        )
    )


case("the defaults of betting_cs", beta(0.63, 0.10, 150), 0.05, 1000, 0.5)
case("two-sided 90 %", beta(0.70, 0.05, 150), 0.10, 1000, 0.5)
case("another grid and truncation", beta(0.35, 0.15, 100), 0.10, 137, 0.75)
case("zeros and ones", (rng.random(150) < 0.9).astype(float), 0.10, 200, 0.5)
case("all ones", np.ones(40), 0.10, 100, 0.5)
case("all zeros", np.zeros(40), 0.10, 100, 0.5)
case("no mean is left", np.repeat([0.7, 1, 0.5, 0.9], [51, 67, 56, 42]), 0.10, 20, 0.75)
case("the gate's bets", beta(0.63, 0.15, 150), 0.10, 1000, 0.9, (0.1, 0.25, 0.5, 0.9), False)
case("stakes and plug-in", beta(0.5, 0.2, 100), 0.10, 200, 0.8, (0.2, 0.8))
with open(os.path.join(os.path.dirname(__file__), "golden", "confidence_sequence.json"), "w") as f:
    json.dump(cases, f)
    f.write("\n")
