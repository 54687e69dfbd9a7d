"""Steps: where they are found, how rarely where there are none, what noise does to them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from kbench.measure import find_steps
from kbench.measure.change_points import _Energy, correlation, without_lone


def autocorrelated(rng: np.random.Generator, n: int, rho: float) -> np.ndarray:
    values = [rng.normal()]
    for _ in range(n - 1):
        values.append(rho * values[-1] + math.sqrt(1 - rho * rho) * rng.normal())
    return np.array(values)


NOISES = {
    "iid": lambda rng, n: 0.02 * rng.normal(size=n),
    "correlated": lambda rng, n: 0.02 * autocorrelated(rng, n, 0.6),
    "heavy tails": lambda rng, n: 0.02 * rng.standard_t(2, n),
    "one outlier": lambda rng, n: 0.02 * rng.normal(size=n) + math.log(10) * (np.arange(n) == rng.integers(n)),
}


def test_the_statistic_is_the_energy_distance() -> None:
    values = np.random.default_rng(1).normal(size=23)
    (found,) = _Energy(values).of(np.arange(23)[None])
    wanted = [
        k * (23 - k) / 23 * stats.energy_distance(values[:k], values[k:]) ** 2 for k in range(2, 22)
    ]  # scipy's is its root
    assert found == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_no_step(name: str) -> None:
    rng = np.random.default_rng(7)
    n_false = sum(bool(find_steps(np.exp(NOISES[name](rng, 100)).tolist()).steps) for _ in range(30))
    assert n_false <= 3  # docs/statistics.md has at most 5 %: four of 30 come by chance in 6 of 100 runs of other seeds


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("effect", [0.10, 1 / 1.10 - 1])
def test_a_step_is_found_where_it_is(name: str, effect: float) -> None:
    rng = np.random.default_rng(8)
    places = []
    for _ in range(20):
        logs = NOISES[name](rng, 80) + math.log1p(effect) * (np.arange(80) >= 50)
        steps = find_steps(np.exp(logs).tolist()).steps
        places += [min(abs(step.at - 50) for step in steps)] if steps else [80]
    # Correlated noise of 2 % wanders by more than its deviation says, and the place with it.
    assert sum(place <= 2 for place in places) >= (12 if name == "correlated" else 17)


def test_an_exact_step_has_exact_levels() -> None:
    found = find_steps([1.0] * 20 + [1.25] * 10)
    (step,) = found.steps
    assert (step.at, step.before, step.after) == (20, pytest.approx(1.0), pytest.approx(1.25))
    assert [(level.start, level.stop) for level in found.levels] == [(0, 20), (20, 30)]
    assert found.noise == 0 and step.ratio == pytest.approx(1.25)


def test_two_values_of_a_new_level_are_a_step_and_one_is_none() -> None:
    rng = np.random.default_rng(9)
    calm = np.exp(0.005 * rng.normal(size=50)).tolist()
    assert not find_steps([*calm, 1.2]).steps
    assert [step.at for step in find_steps([*calm, 1.2, 1.2, 1.2]).steps] == [50]


def test_a_step_is_found_beside_a_bad_run() -> None:
    logs = 0.01 * np.random.default_rng(14).normal(size=40) + 0.05 * (np.arange(40) >= 20)
    logs[38] += math.log(10)
    assert [step.at for step in find_steps(np.exp(logs).tolist()).steps] == [20]


def test_what_is_too_small_to_talk_about_is_no_step() -> None:
    values = [1.0, 1.001] * 20 + [1.02, 1.021] * 20
    assert not find_steps(values).steps
    assert [step.at for step in find_steps(values, min_magnitude=0.01).steps] == [40]


def test_up_and_down_again_are_two_steps() -> None:
    rng = np.random.default_rng(10)
    logs = 0.01 * rng.normal(size=90) + 0.1 * ((np.arange(90) >= 30) & (np.arange(90) < 60))
    assert [step.at for step in find_steps(np.exp(logs).tolist()).steps] == [30, 60]


def test_a_short_series_is_one_level_and_a_long_one_is_cut() -> None:
    assert not find_steps([1.0] * 5 + [2.0] * 6).steps
    (step,) = find_steps([1.0] * 700 + [2.0] * 50).steps
    assert step.at == 700
    assert find_steps([1.0] * 700 + [2.0] * 50).levels[0].start == 350


def test_the_same_series_has_the_same_steps() -> None:
    values = np.exp(0.03 * np.random.default_rng(11).normal(size=120)).tolist()
    assert find_steps(values) == find_steps(values)


@pytest.mark.parametrize("values", [[], [1.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_what_is_no_series(values: list[float]) -> None:
    with pytest.raises(ValueError, match="positive finite"):
        find_steps(values)


@pytest.mark.parametrize(("rho", "low", "high"), [(0.0, 0.0, 0.12), (0.6, 0.45, 0.72), (0.8, 0.65, 0.9)])
def test_correlation_is_known_whatever_the_steps(rho: float, low: float, high: float) -> None:
    rng = np.random.default_rng(12)
    found = [correlation(0.02 * autocorrelated(rng, 200, rho) + 0.2 * (np.arange(200) >= 90)) for _ in range(40)]
    assert low <= float(np.mean(found)) <= high


def test_lone_values_are_pulled_in_and_levels_stay() -> None:
    logs = 0.01 * np.random.default_rng(13).normal(size=40) + 0.3 * (np.arange(40) >= 20)
    lone = logs.copy()
    lone[7] += 2.0
    pulled = without_lone(lone)
    assert abs(pulled[7]) < 0.1
    assert np.abs(pulled - logs)[np.arange(40) != 7].max() < 0.06
