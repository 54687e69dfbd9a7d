"""GPU profiles: every embedded one is whole and sane, and what is modelled follows from its figures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kbench.core import UserError, Work
from kbench.tuner import load_profile, profile, profile_names
from kbench.tuner.profile import LAUNCH_SECONDS, LINK_LATENCY_SECONDS


def test_every_embedded_profile_is_sane() -> None:
    assert set(profile_names()) == {
        "rtx3060", "rtx3090", "rtx4060ti", "rtx4080", "rtx4090", "rtx5090", "a6000", "l40s", "a100", "h100", "h200",
        "mi300x",
    }  # fmt: skip
    for name in profile_names():
        profile = load_profile(name)
        assert 2**33 < profile.memory_bytes < 2**38
        assert 2.5e11 < profile.bandwidth < 1e13
        assert 2e13 < profile.fp16_flops < 3e15
        # With accumulation in float32 some have half the rate of FP16, and 8-bit products are twice that.
        assert round(profile.int8_ops / profile.fp16_flops) in (2, 4)
        figures = {"memory", "bandwidth_gb_per_s", "fp16_tflops", "int8_tops", "link", "link_gb_per_s"}
        assert set(profile.sources) == figures and all(len(source) > 8 for source in profile.sources.values())
        assert 1e10 < profile.link_bandwidth < profile.bandwidth / 5


def test_figures_are_what_their_sources_compute() -> None:
    """Widths and rates of memory, tensor cores and clocks, where a source tells them."""
    bandwidths = rates = 0
    for name in profile_names():
        known = load_profile(name)
        if memory := re.search(r"(\d+)-bit \S+ at ([\d.]+) Gbit/s", known.sources["bandwidth_gb_per_s"]):
            assert known.bandwidth == pytest.approx(1e9 * int(memory[1]) * float(memory[2]) / 8, rel=0.005), name
            bandwidths += 1
        source = known.sources["fp16_tflops"]
        if cores := re.search(r"(\d+) tensor cores x 256 FLOP x ([\d.]+) GHz", source):
            full = int(cores[1]) * 256 * 1e9 * float(cores[2])
            assert known.fp16_flops == pytest.approx(full / 2 if "half of" in source else full, rel=0.003), name
            assert known.int8_ops == pytest.approx(2 * full, rel=0.003), name
            rates += 1
    assert bandwidths >= 8 and rates >= 7


def test_names_are_forgiving_and_mistakes_are_helped() -> None:
    assert load_profile("RTX 4090").name == load_profile("rtx-4090").name == "rtx4090"
    with pytest.raises(UserError, match="did you mean rtx4090"):
        load_profile("rtx4900")


def test_time_is_the_longer_of_bytes_and_arithmetic() -> None:
    profile = load_profile("rtx4090")
    gigabyte = Work(1.0, 1e9, 0, 0, 1, 1e9)
    assert profile.seconds(gigabyte) == pytest.approx(LAUNCH_SECONDS + 1e9 / (0.8 * 1008e9))
    teraflop = Work(1e12, 1e6, 0, 0, 1, 1e6)
    assert profile.seconds(teraflop) == pytest.approx(LAUNCH_SECONDS + 1e12 / (0.5 * 165.2e12))
    assert profile.transfer_seconds(25e9) == pytest.approx(LINK_LATENCY_SECONDS + 1.0)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (("bandwidth_gb_per_s: 1008", "bandwidth_gb_per_s: fast"), "bandwidth_gb_per_s: 'fast'"),
        (("fp16_tflops: 165.2", "fp16_tflops: -1"), "fp16_tflops: -1"),
        (("memory: 24564M", "memory: 24 chairs"), "not a size"),
        (("label:", "lable:"), "accepted: exactly label"),
    ],
)
def test_a_profile_of_ones_own(tmp_path: Path, change: tuple[str, str], complaint: str) -> None:
    source = (Path(load_profile.__code__.co_filename).parent / "profiles" / "rtx4090.yaml").read_text()
    mine = tmp_path / "mine.yaml"
    mine.write_text(source)
    assert load_profile(str(mine)).bandwidth == 1008e9
    mine.write_text(source.replace(*change))
    with pytest.raises(UserError) as caught:
        load_profile(str(mine))
    assert complaint in caught.value.message


def test_a_label_that_a_terminal_would_obey_is_refused(tmp_path: Path) -> None:
    source = Path(profile.__file__).parent / "profiles" / "rtx4090.yaml"
    path = tmp_path / "mine.yaml"
    lines = ['label: "\\e[2J"' if line.startswith("label:") else line for line in source.read_text().splitlines()]
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match="printable"):
        load_profile(str(path))
