"""A GPU's link as it was measured stands in for what its profile assumes, for that GPU only."""

from __future__ import annotations

import pytest

from kbench.core import CPU, Device, Problem, work
from kbench.measure import LAUNCH, LINK, LinkCosts
from kbench.results import Record
from kbench.tuner import CostModel, load_profile
from kbench.tuner.cost_model import MEASURED, MODELLED
from kbench.tuner.links import links_of, with_links
from kbench.tuner.profile import LAUNCH_SECONDS
from kbench.tuner.report import modelled

GPU, GPU1 = Device("cuda", 0), Device("cuda", 1)
SAMPLES = {
    "pinned_to_device_latency": (20e-6,),
    "pinned_to_device_bandwidth": (25e9,),
    "pinned_from_device_latency": (10e-6,),
    "pinned_from_device_bandwidth": (10e9,),
    LAUNCH: (3e-6,),
}


def records(gpu: str, device: str = "cuda:0") -> list[Record]:
    return [
        Record.make((LINK, {"what": name}), "torch", device=device, result=samples, extra={"gpu": gpu})
        for name, samples in SAMPLES.items()
    ]


def test_a_measured_link_is_used_and_said_to_be_measured() -> None:
    plain = {GPU: load_profile("rtx4090"), GPU1: load_profile("rtx4090")}
    found = with_links(plain, links_of(records("NVIDIA GeForce RTX 4090")))
    assert found[GPU].measured == LinkCosts("cuda:0", SAMPLES) and found[GPU1].measured is None
    costs = CostModel([], threads=(1,), profiles=found)
    cost = costs.transfer(1e6, CPU, GPU)
    assert (cost.seconds, cost.source) == (pytest.approx(10e-6 + 1e-4), MEASURED)
    assert costs.transfer(1e6, CPU, GPU1).source == costs.transfer(1e6, GPU, GPU1).source == MODELLED
    norm = work(Problem.parse("rms_norm(d=64,rows=1,tokens=1)"))
    saved = plain[GPU].seconds(norm) - found[GPU].seconds(norm)
    assert saved == pytest.approx(LAUNCH_SECONDS - 3e-6)
    assert [line.endswith("every transfer") for line in modelled({}, found)] == [False, True]


def test_another_card_in_its_place_has_other_numbers() -> None:
    plain = {GPU: load_profile("rtx4090")}
    assert with_links(plain, links_of(records("NVIDIA A100-SXM4-80GB")))[GPU].measured is None
    newest = links_of([*records("NVIDIA A100-SXM4-80GB"), *records("NVIDIA GeForce RTX 4090")])
    assert newest["cuda:0"][0] == "NVIDIA GeForce RTX 4090"
