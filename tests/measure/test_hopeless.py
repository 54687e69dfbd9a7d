"""Giving up on what has lost, and only on that."""

from __future__ import annotations

import numpy as np

from kbench.measure import FixedCount, Hopeless, measure


def test_it_stops_once_it_is_sure() -> None:
    rule = Hopeless(FixedCount(50), 1.0)
    rule.start()
    for n in range(1, 7):
        assert not rule.done()
        rule.add(1.5, 1.5 * n)
    assert rule.done() and rule.reason.startswith("hopeless: median over 1.5")


def test_one_fast_sample_of_six_is_not_sure() -> None:
    rule = Hopeless(FixedCount(6), 1.0)
    rule.start()
    for sample in (1.5, 1.5, 0.9, 1.5, 1.5, 1.5):
        rule.add(sample, 1.0)
    assert rule.done() and rule.reason.startswith("count")
    rule.start()
    assert not rule.done() and rule.reason == ""


def test_what_is_as_fast_as_the_limit_is_hardly_ever_given_up() -> None:
    """The interval is looked at after every sample, so its 5 % are an underestimate; a limit 5 % away makes up for it:
    with noise of 3 % none of a thousand is lost."""
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(1000):
        rule = Hopeless(FixedCount(30), 1.05)
        rule.start()
        while not rule.done():
            rule.add(float(np.exp(0.03 * rng.standard_normal())), 0.0)
        lost += rule.reason.startswith("hopeless")
    assert lost == 0


def test_the_samples_are_kept() -> None:
    taken = measure(lambda: sum(range(1000)), stopping=Hopeless(FixedCount(20), 1e-12), warmup=1)
    assert len(taken.samples_seconds) == 6 and taken.stop_reason.startswith("hopeless")
