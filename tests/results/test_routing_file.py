"""The file of visits to experts: written and read back, and what is none refused with its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kbench.core import CorruptFile, UserError
from kbench.results import Routing, read_routing, routing_path, write_routing

ROUTING = Routing("a model", "Q4_K_M", "random:1", 4, 2, 10, {1: (10, 5, 5, 0), 2: (5, 5, 5, 5)}, {"host_id": "h"})


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = routing_path(tmp_path, ROUTING, "a-host")
    assert path.parent == tmp_path / "a-host" and path.name.startswith("routing-a-model-")
    write_routing(path, ROUTING)
    assert read_routing(path) == ROUTING
    assert json.loads(path.read_text())["key"] == ROUTING.key
    assert ROUTING.key == "routing(model=a model,quant=Q4_K_M,text=random:1,tokens=10)"


def test_shares_of_the_hottest() -> None:
    assert ROUTING.share_of_hottest(0.5) == pytest.approx((15 + 10) / 40)
    assert (ROUTING.share_of_hottest(0), ROUTING.share_of_hottest(1)) == (0, 1)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"schema": "kbench.tune/1"}, "schema"),
        ({"experts": 5}, "layers.1"),
        ({"experts": 4.5}, "experts"),
        ({"experts": 1 << 30}, "experts"),
        ({"top_k": 9}, "top_k"),
        ({"top_k": True}, "top_k"),
        ({"tokens": 11}, "20 visits"),
        ({"layers": {}}, "no layers"),
        ({"layers": []}, "layers"),
        ({"layers": {"1": [11, 5, 4, 0]}}, "layers.1"),
        ({"layers": {"1": [10, 5, 4.5, 0.5]}}, "layers.1"),
        ({"layers": {"1": [10, 15, -5, 0]}}, "layers.1"),
        ({"layers": {"one": [5, 5, 5, 5]}}, "layers.one"),
        ({"layers": {"-1": [5, 5, 5, 5]}}, "layers.-1"),
        ({"model": 7}, "model"),
    ],
)
def test_files_that_are_none(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "r.json"
    write_routing(path, ROUTING)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(CorruptFile, match=complaint) as error:
        read_routing(path)
    assert str(path) in error.value.message


def test_no_file_and_no_json(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_routing(tmp_path / "missing")
    for text in ("", "{", "[" * 100_000, "null", "[1]"):
        (tmp_path / "bad").write_text(text)
        with pytest.raises(CorruptFile):
            read_routing(tmp_path / "bad")
