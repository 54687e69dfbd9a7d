"""What the engine's tests have in common."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True, scope="module")
def _float32(float32_torch: None) -> None:
    """Every engine's ``torch`` is in float32."""
