"""What the engine's tests have in common."""

from __future__ import annotations

import pytest

from kbench.kernels import implementation
from kbench.kernels.torch_baseline import torch_device


@pytest.fixture(autouse=True)
def float32_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch multiplies in float32 also where the CPU has bfloat16, whose roundoff (2^-9) would hide what these tests
    look for: values that went to the wrong place. The kernels' own tests bound its products in bfloat16."""
    for item in (implementation("torch"), torch_device("cpu")):
        monkeypatch.setattr(item, "dtype", "f32")
