"""Which tile a product gets: measured once, remembered on disk, and a sound guess without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kbench.kernels.triton.int4_tile import ANY_DEVICE, KEPT_TILES, Cut, DeviceLimits, candidates, fitting, heuristic
from kbench.kernels.triton.tile_cache import SCHEMA, Measured, TileCache
from kbench.kernels.triton.tile_choice import CannotRun, measured_choice, row_class, shape_class

LARGE = DeviceLimits("H", 132, 227 << 10)
CUTS = (Cut(KEPT_TILES[0], 1), Cut(KEPT_TILES[0], 4), Cut(KEPT_TILES[3], 2))


class Clock:
    """Seconds by cut; counts how often each is asked for."""

    def __init__(self, seconds: dict[Cut, float]) -> None:
        self.seconds, self.asked = seconds, 0

    def __call__(self, cut: Cut) -> float:
        self.asked += 1
        if cut not in self.seconds:
            raise CannotRun("out of shared memory")
        return self.seconds[cut]


def cache(path: Path, device: str = "H", version: str = "1") -> TileCache:
    return TileCache(path / "tiles.json", device, version)


def test_the_fastest_is_measured_once(tmp_path: Path) -> None:
    clock = Clock({CUTS[0]: 3.0, CUTS[2]: 1.0})  # the second cannot run
    shape = shape_class(128, 5, 4096, 5120)
    assert measured_choice(shape, CUTS, cache(tmp_path), clock) == CUTS[2] and clock.asked == 3
    assert measured_choice(shape, CUTS, cache(tmp_path), clock) == CUTS[2] and clock.asked == 3, "another process"
    assert measured_choice(shape, CUTS, cache(tmp_path, "L4"), Clock({CUTS[1]: 1.0})) == CUTS[1], "another device"
    assert cache(tmp_path).get(shape) == Measured(CUTS[2], 1.0), "and both are kept"
    clock = Clock({CUTS[0]: 1.0})
    assert measured_choice(shape, CUTS, cache(tmp_path, version="2"), clock) == CUTS[0], "other kernels"


def test_without_a_measure_the_first_is_taken_and_nothing_is_remembered(tmp_path: Path) -> None:
    shape = shape_class(128, 1, 64, 256)
    assert measured_choice(shape, CUTS, cache(tmp_path), None) == CUTS[0]
    assert measured_choice(shape, CUTS, cache(tmp_path), Clock({})) == CUTS[0], "none can run"
    assert not list(tmp_path.iterdir())


def test_of_equals_the_first_is_taken(tmp_path: Path) -> None:
    assert measured_choice("s", CUTS, cache(tmp_path), Clock(dict.fromkeys(CUTS, 1.0))) == CUTS[0]


def test_what_is_remembered_must_be_wanted(tmp_path: Path) -> None:
    """A cut that no longer may be chosen is measured anew."""
    cache(tmp_path).put("s", Measured(CUTS[2], 1.0))
    assert measured_choice("s", CUTS[:2], cache(tmp_path), Clock({CUTS[1]: 1.0})) == CUTS[1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": "kbench.tiles/9"}',
        "\0" * 100,
        '{"schema": "kbench.tiles/1", "devices": 3}',
        "[" * 9999,
    ],
)
def test_a_broken_file_is_as_good_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "tiles.json").write_text(text)
    assert cache(tmp_path).get("s") is None
    assert cache(tmp_path).put("s", Measured(CUTS[1], 2.0)) and cache(tmp_path).get("s") == Measured(CUTS[1], 2.0)


@pytest.mark.parametrize(
    "entry",
    [3, {}, {"tile": "1x1w1s1", "parts": 1, "seconds": 1}, {"tile": KEPT_TILES[0].name, "parts": 0, "seconds": 1}]
    + [{"tile": KEPT_TILES[0].name, "parts": parts, "seconds": 1} for parts in (True, 10**9, "2")]
    + [{"tile": KEPT_TILES[0].name, "parts": 1, "seconds": seconds} for seconds in (-1, float("nan"), None, 10**400)],
)
def test_an_entry_that_is_no_choice_is_left_out(entry: object, tmp_path: Path) -> None:
    good = {"tile": CUTS[1].tile.name, "parts": 4, "seconds": 0.5}
    whole = {"schema": SCHEMA, "devices": {"H": {"1": {"bad": entry, "good": good}}}}
    (tmp_path / "tiles.json").write_text(json.dumps(whole))
    assert cache(tmp_path).get("bad") is None and cache(tmp_path).get("good") == Measured(CUTS[1], 0.5)


def test_what_others_wrote_meanwhile_stays(tmp_path: Path) -> None:
    mine, yours = cache(tmp_path), cache(tmp_path)
    assert mine.get("a") is yours.get("b") is None
    mine.put("a", Measured(CUTS[0], 1.0))
    yours.put("b", Measured(CUTS[1], 1.0))
    assert cache(tmp_path).get("a") == Measured(CUTS[0], 1.0) and cache(tmp_path).get("b") == Measured(CUTS[1], 1.0)


def test_a_folder_that_cannot_be_written_costs_no_more_than_measuring_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    blocked = cache(tmp_path / "file")
    assert measured_choice("s", CUTS, blocked, Clock({CUTS[1]: 1.0})) == CUTS[1]
    clock = Clock({})
    assert measured_choice("s", CUTS, blocked, clock) == CUTS[1] and not clock.asked, "this process remembers"


def test_rows_of_a_class_share_a_choice() -> None:
    assert [row_class(m) for m in (1, 8, 9, 16, 17, 1000)] == [8, 8, 16, 16, 32, 1024]
    assert shape_class(128, 9, 64, 256) == shape_class(128, 16, 64, 256) != shape_class(64, 16, 64, 256)


@pytest.mark.parametrize("m", [1, 5, 16, 17, 64, 65, 1024])
@pytest.mark.parametrize(("n", "chunks"), [(64, 1), (5120, 20), (16384, 20), (151936, 8)])
@pytest.mark.parametrize("limits", [ANY_DEVICE, LARGE, DeviceLimits("small", 20, 48 << 10)])
def test_what_may_be_chosen(m: int, n: int, chunks: int, limits: DeviceLimits) -> None:
    guess, wanted = heuristic(m, n, chunks, limits), candidates(m, n, chunks, limits)
    assert wanted[0] == guess and len(set(wanted)) == len(wanted) <= 60
    assert all(cut.tile in fitting(limits) and 1 <= cut.parts <= max(1, chunks) for cut in wanted)
    assert guess.tile.block_m >= min(m, max(tile.block_m for tile in fitting(limits)))
    programs = -(-n // guess.tile.block_n) * -(-m // guess.tile.block_m) * guess.parts
    assert programs <= 2 * limits.multiprocessors or guess.parts == 1, "parts only where programs are few"


def test_a_decode_step_keeps_every_multiprocessor_busy() -> None:
    cut = heuristic(1, 5120, 64, LARGE)
    assert -(-5120 // cut.tile.block_n) * cut.parts >= LARGE.multiprocessors
