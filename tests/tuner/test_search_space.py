"""The search space is the declaration."""

from __future__ import annotations

from typing import Any

import pytest

from kbench.core import Problem
from kbench.kernels import BlockParameter, implementation
from kbench.tuner import search_space, search_space_of

LINEAR = Problem.make("linear", quant="Q4_K", n=1536, k=5120, tokens=1)


def declared(name: str, default: int | str, *candidates: int | str) -> BlockParameter:
    return BlockParameter(name, "things", default, candidates, 0, 9, 1, (), "0 to 9", "For tests.")


def test_every_combination_once_and_the_defaults_left_out() -> None:
    space = search_space_of((declared("tile", 2, 1, 2, 4), declared("split", "static", "static", "dynamic")))
    assert list(space.settings()) == [
        {},
        {"tile": 1},
        {"tile": 1, "split": "dynamic"},
        {"split": "dynamic"},
        {"tile": 4},
        {"tile": 4, "split": "dynamic"},
    ]
    assert space.n_settings == 6


@pytest.mark.parametrize("name", ["cpu.scalar", "torch"])
def test_it_is_read_from_the_implementation(name: str) -> None:
    item: Any = implementation(name)
    space = search_space(LINEAR, name)
    parameters = item.block_parameters(LINEAR)
    assert dict(space.candidates) == {p.name: p.candidates for p in parameters}
    assert space.defaults == {p.name: p.default for p in parameters}
    assert next(space.settings()) == {}
    if not parameters:
        assert space.n_settings == 1 and list(space.settings()) == [{}]
