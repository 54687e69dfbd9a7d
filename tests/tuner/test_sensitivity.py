"""What one GiB more would bring, against solving for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_presets import layout_of

from kbench.core import Phase
from kbench.tuner.placement import solve
from kbench.tuner.price import price
from kbench.tuner.sensitivity import GAP, STEP_BYTES, sensitivity


@pytest.mark.parametrize("share", [0.3, 2.0])
def test_a_gib_more(share: float) -> None:
    layout = layout_of("deepseek-v2-lite-chat", 4, 2, 0.0)
    unlimited = layout.problem((1 << 62, 1 << 62))
    total = layout.plan.descriptor.n_bytes
    problem = replace(unlimited, capacity=(1 << 62, int(share * total)))
    found = solve(problem)
    more = solve(replace(problem, capacity=(1 << 62, int(share * total) + STEP_BYTES)))
    assert found is not None and more is not None
    rows = {row["device"]: row for row in sensitivity(layout, problem, found)}
    assert rows["cpu"]["decode_tokens_per_s"] == 0  # it has all it wants
    rates = [1 / price(layout, solution)[Phase.DECODE].seconds for solution in (found, more)]
    assert rows["cuda:0"]["decode_tokens_per_s"] == pytest.approx(rates[1] - rates[0], abs=2 * GAP * rates[1])
    assert (rows["cuda:0"]["decode_tokens_per_s"] > 0) == (share < 1)


def test_host_memory_that_is_short() -> None:
    """Experts that the host cannot hold have to crowd other things out of the GPU."""
    layout = layout_of("deepseek-v2-lite-chat", 4, 2, 0.0)
    total = layout.plan.descriptor.n_bytes
    problem = layout.problem((int(0.5 * total), int(0.6 * total)))
    found = solve(problem)
    assert found is not None
    assert all(row["extra_bytes"] == STEP_BYTES for row in sensitivity(layout, problem, found))
