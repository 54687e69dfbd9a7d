"""Rotation frequencies against Hugging Face transformers' own."""

from __future__ import annotations

import numpy as np
import pytest

from kbench.core import UserError
from kbench.kernels import rope_frequencies

rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
BASE = {"rope_theta": 10000.0, "rope_type": "default"}


def transformers_frequencies(d: int, parameters: dict[str, object]) -> tuple[np.ndarray, float]:
    from transformers import LlamaConfig

    config = LlamaConfig(
        hidden_size=4 * d, num_attention_heads=4, head_dim=d, max_position_embeddings=163840, rope_parameters=parameters
    )
    inv_freq, factor = rope_utils.ROPE_INIT_FUNCTIONS[str(parameters["rope_type"])](config, None)
    return inv_freq.numpy(), float(factor)


@pytest.mark.parametrize("base", [10000.0, 500000.0, 1e6])
@pytest.mark.parametrize("d", [64, 96, 128])
@pytest.mark.parametrize("mscale", [None, (1.0, 1.0), (0.707, 0.707), (1.0, 0.5)])
def test_yarn(d: int, base: float, mscale: tuple[float, float] | None) -> None:
    attrs = {"freq_base": base, "scaling": "yarn", "factor": 40.0, "original_context": 4096}
    attrs |= {"beta_fast": 32.0, "beta_slow": 1.0}
    theirs = {"rope_type": "yarn", "rope_theta": base, "factor": 40.0, "original_max_position_embeddings": 4096}
    theirs |= {"beta_fast": 32.0, "beta_slow": 1.0}
    if mscale:
        attrs |= {"mscale": mscale[0], "mscale_all_dim": mscale[1]}
        theirs |= {"mscale": mscale[0], "mscale_all_dim": mscale[1]}
    expected, expected_factor = transformers_frequencies(d, theirs)
    inv_freq, factor = rope_frequencies(attrs, d)
    np.testing.assert_allclose(inv_freq, expected, rtol=2e-6)
    assert factor == pytest.approx(expected_factor, rel=1e-12)


@pytest.mark.parametrize(("d", "base"), [(64, 150000.0), (32, 10000.0)])
def test_yarn_with_exact_bounds(d: int, base: float) -> None:
    """As gpt-oss has it (the first of the two)."""
    theirs = {"rope_type": "yarn", "rope_theta": base, "factor": 32.0, "original_max_position_embeddings": 4096}
    expected, expected_factor = transformers_frequencies(d, theirs | {"truncate": False})
    attrs = {"freq_base": base, "scaling": "yarn", "factor": 32.0, "original_context": 4096}
    inv_freq, factor = rope_frequencies(attrs | {"exact_bounds": 1}, d)
    np.testing.assert_allclose(inv_freq, expected, rtol=2e-6)
    assert factor == pytest.approx(expected_factor, rel=1e-12)
    assert not np.allclose(rope_frequencies(attrs, d)[0], expected, rtol=1e-3)


def test_linear() -> None:
    theirs = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    expected, _ = transformers_frequencies(64, theirs)
    inv_freq, factor = rope_frequencies({"freq_base": 10000.0, "scaling": "linear", "factor": 4.0}, 64)
    np.testing.assert_allclose(inv_freq, expected, rtol=2e-6)
    assert factor == 1.0


def test_plain_and_frequency_factors() -> None:
    plain, factor = rope_frequencies({"freq_base": 10000.0, "scaling": "none"}, 8)
    np.testing.assert_allclose(plain, [1.0, 0.1, 0.01, 0.001], rtol=1e-6)
    divided, _ = rope_frequencies({"freq_base": 10000.0}, 8, np.array([1, 2, 4, 8], np.float32))
    np.testing.assert_allclose(divided, plain / [1, 2, 4, 8], rtol=1e-6)
    assert plain.dtype == divided.dtype == np.float32
    assert factor == 1.0


@pytest.mark.parametrize(
    ("attrs", "d", "factors"),
    [
        ({}, 7, None),
        ({"scaling": "dynamic"}, 8, None),
        ({"scaling": "linear", "factor": 0}, 8, None),
        ({"scaling": "yarn", "factor": 4}, 8, None),
        ({}, 8, [1.0, 2.0]),
        ({}, 8, [1.0, 0.0, 1.0, 1.0]),
    ],
)
def test_nonsense_is_refused(attrs: dict[str, object], d: int, factors: list[float] | None) -> None:
    with pytest.raises(UserError):
        rope_frequencies(attrs, d, factors)  # type: ignore[arg-type]
