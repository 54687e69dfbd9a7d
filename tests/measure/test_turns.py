"""Sides in processes: the order of turns, what they raise, and how they end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kbench.core import CheckBroken, InvalidEnvironment, UserError
from kbench.measure import Side, Turns

# A side that writes its name to a file at each turn, so that the order can be read there.
PROGRAM = """
import os, sys
from kbench.core import InvalidEnvironment, UserError
from kbench import measure
from kbench.measure import serve
name, log = sys.argv[1:]

def turn(request):
    with open(log, "a") as file:
        file.write(name)
    return [1.5, request["n"]]

def refuse(request):
    raise UserError("no such shape", where="here", todo="another")

def crash(request):
    return {}["nothing"]

def die(request):
    print("the last words", file=sys.stderr)
    os._exit(3)

print("some library's greeting")
print("[INFO] loading")
if name == "refusing":
    measure.refuse(InvalidEnvironment("no GPU", where="rule 1", todo="another"))
    sys.exit()
serve({"": turn} if len(name) == 1 else {"refuse": refuse, "crash": crash, "die": die}, {"pid": os.getpid()})
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "side.py"
    path.write_text(PROGRAM)
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def rough(program: Path, log: Path) -> Iterator[Side]:
    with Side("rough", [str(program), "rough", str(log)]) as side:
        yield side


def pair(program: Path, log: Path) -> list[Side]:
    return [Side(name, [str(program), name, str(log)]) for name in "ab"]


def test_turns_alternate(program: Path, log: Path) -> None:
    with Turns(pair(program, log), {"n": 0}, at_once=True) as turns:
        answers = turns.take(3, {"n": 7})
        turns.take(1, {"n": 7})
    assert log.read_text() == "aa" + "bb" + "ba" + "ab" + "ba"  # each warmed up where it starts
    assert answers == {("a", ""): [[1.5, 7]] * 3, ("b", ""): [[1.5, 7]] * 3}


def test_sides_that_do_not_fit_together_are_loaded_in_turns(program: Path, log: Path) -> None:
    sides = pair(program, log)
    with Turns(sides, {"n": 0}, at_once=False, visit=2) as turns:
        turns.take(4, {"n": 7})
        assert [side.running for side in sides] == [True, False]
    assert log.read_text() == "aaa" + "bbb" + "bb" + "aaa"


def test_a_side_is_stopped_while_it_is_not_its_turn(program: Path, log: Path) -> None:
    (a, _) = pair(program, log)
    with a:
        process = psutil.Process(a.about["pid"])
        for _ in range(2):
            deadline = time.monotonic() + 10
            while process.status() != psutil.STATUS_STOPPED and time.monotonic() < deadline:
                time.sleep(0.01)
            assert process.status() == psutil.STATUS_STOPPED
            assert a.ask("", {"n": 1}) == [1.5, 1]
    assert not psutil.pid_exists(a.about["pid"])


def test_what_a_turn_raises_is_its_answer_and_the_side_lives_on(rough: Side) -> None:
    refused: dict[str, Any] = rough.ask("refuse", {})
    assert refused == {
        "failed": "UserError", "found": "no such shape", "where": "here", "accepted": "", "todo": "another"
    }  # fmt: skip
    assert rough.ask("crash", {}) == {"failed": "KeyError", "found": "KeyError: 'nothing'"}


def test_what_a_side_refuses_is_raised_here_as_what_it_is(program: Path, log: Path) -> None:
    with pytest.raises(InvalidEnvironment, match=r"^x: rule 1: no GPU · another$"):
        Side("x", [str(program), "refusing", str(log)]).start()


def test_what_a_turn_of_several_raises_is_raised_here_too(program: Path, log: Path) -> None:
    side = Side("rough", [str(program), "rough", str(log)])
    for variant, kind in (("refuse", UserError), ("crash", CheckBroken)):
        with Turns([side], {}, at_once=True) as turns, pytest.raises(kind) as caught:
            side.start()
            side.variants = [variant]
            turns.take(1, {})
        assert caught.type is kind and caught.value.where.startswith("rough")


def test_a_side_that_dies_is_told_with_its_last_words(rough: Side) -> None:
    with pytest.raises(CheckBroken, match=r"rough: its process ended \(exit code 3\)\nthe last words"):
        rough.ask("die", {})


def test_a_side_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(CheckBroken, match="No such file"):
        Side("nobody", [str(tmp_path / "none.py")]).start()
