"""Planning for a machine that is elsewhere, from the file that was exported there."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from made_up_records import HOST_ID, records
from rich.console import Console

from kbench.core import OverBudget, UserError
from kbench.measure import Ceiling, Ceilings, host, read_host_profile
from kbench.measure.host_profile import export_host
from kbench.model import embedded
from kbench.report import html_page, print_tune_report
from kbench.results import Store, read_tune_result
from kbench.rules import load_rules
from kbench.tuner import TuneRequest, cells, make_plan, tune_elsewhere, workload

SERVER = """\
kbench_host: 1
host_id: made-up-host
cpu: Two sockets of something
usable_cpus: 32
memory_bytes: 412316860416
gpus:
- {name: NVIDIA GeForce RTX 4090, memory_bytes: 25769803776}
- {name: NVIDIA GeForce RTX 3060, memory_bytes: 12884901888}
read_bandwidth: {1: 12.0e+9, 8: 90.0e+9, 32: 300.0e+9}
arithmetic_peak: {1: 300.0e+9, 32: 8.0e+12}
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "server.yaml"
    path.write_text(SERVER)
    return path


def test_a_host_comes_back_as_it_was_exported(tmp_path: Path) -> None:
    items = (
        Ceiling("read_bandwidth", 1, "bytes/s", (10e9, 11e9, 12e9), ""),
        Ceiling("read_bandwidth", 2, "bytes/s", (20e9,), ""),
        Ceiling("int8", 2, "op/s", (5e11,), ""),
        Ceiling("f32", 2, "op/s", (1e11,), ""),
        Ceiling("bf16", 2, "op/s", (), "no such instructions"),
    )
    export_host(tmp_path / "here.yaml", host(), Ceilings("cpu.some", items))
    found = read_host_profile(tmp_path / "here.yaml")
    assert (found.host_id, found.usable_cpus, found.cpu) == (host().host_id, host().usable_cpus, host().cpu.model)
    assert found.bandwidth == {1: 11e9, 2: 20e9} and found.peak == {2: 5e11}
    assert found.memory_bytes == host().usable_memory_bytes
    assert [entry.name for entry in tmp_path.iterdir()] == ["here.yaml"]


def test_a_plan_from_ceilings_alone(server: Path, tmp_path: Path) -> None:
    report = tune_elsewhere(TuneRequest(model="deepseek-v2-lite-chat"), Store(tmp_path / "results"), server)
    fields = report.fields
    assert fields["predicted"]["source"] == "modelled" and fields["host"]["cores"] == 32
    assert {device: gpu["name"] for device, gpu in fields["gpus"].items()} == {"cuda:0": "rtx4090", "cuda:1": "rtx3060"}
    assert fields["budgets"]["by_device"] == {"cpu": 384 << 30, "cuda:0": 24 << 30, "cuda:1": 12 << 30}
    # No faster than reading 0.8 of its bandwidth allows: what a token reads lies on the host to two thirds at least.
    experts = sum(t.n_bytes for t in embedded("deepseek-v2-lite-chat").tensors if t.kind == "routed experts") * 6 / 64
    assert fields["predicted"]["decode_tokens_per_s"] < 300e9 / experts
    assert read_tune_result(Path(fields["rules_path"]))["vram_curve"]
    assert load_rules(Path(fields["rules_path"])) and Path(fields["rules_path"]).is_file()
    assert all(row["source"] == "modelled" for row in fields["ops"])
    assert load_rules(Path(fields["rules_path"])).provenance["modelled"][-1].startswith("cpu: every time")
    page = html_page(read_tune_result(Path(fields["rules_path"])))
    for words in ("GPU and CPU modelled", "on Two sockets of something with 36 GiB of GPU memory"):
        assert words in page, words
    assert "Times on the CPU (Two sockets of something) are modelled" in page
    for words in ("this machine", "measured here", "were measured on Two sockets of something;", "CPU measured"):
        assert words not in page, words
    terminal = Console(file=io.StringIO(), width=100)
    print_tune_report(terminal, fields)
    assert isinstance(terminal.file, io.StringIO) and "(GPU and CPU modelled)" in terminal.file.getvalue()


def test_its_records_count_for_more(server: Path, tmp_path: Path) -> None:
    request = TuneRequest(model="deepseek-v2-lite-chat", vram_bytes=0, threads=2)
    store = Store(tmp_path / "results")
    modelled = tune_elsewhere(request, store, server).fields["predicted"]
    plan = make_plan(embedded("deepseek-v2-lite-chat"), request, workload(request))
    store.append(records(cells(plan, (2,))), suite="made-up")
    measured = tune_elsewhere(request, store, server).fields
    assert measured["host_id"] == HOST_ID and measured["predicted"]["source"] == "measured"
    assert measured["predicted"]["decode_tokens_per_s"] != modelled["decode_tokens_per_s"]
    assert load_rules(Path(measured["rules_path"])).provenance["modelled"] == []
    assert "measured on Two sockets of something; the model itself was not run" in html_page(measured)


def test_its_memory_is_the_budget(server: Path, tmp_path: Path) -> None:
    server.write_text(SERVER.replace("412316860416", "4294967296"))
    with pytest.raises(OverBudget, match="DRAM is"):
        tune_elsewhere(TuneRequest(model="deepseek-v2-lite-chat", vram_bytes=0), Store(tmp_path / "r"), server)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("kbench_host: 1", "kbench_host: 2", "kbench_host 2"),
        ("usable_cpus: 32", "usable_cpus: many", "usable_cpus is 'many'"),
        ("usable_cpus: 32", "usable_cpus: -1", "usable_cpus is -1"),
        ("32: 300.0e+9", "32: fast", "positive numbers by thread count"),
        ("read_bandwidth: {1: 12.0e+9, 8: 90.0e+9, 32: 300.0e+9}", "read_bandwidth: {}", "positive numbers"),
        ("memory_bytes: 25769803776}", "memory_bytes: .nan}", "a list of name and memory_bytes"),
        ("cpu: Two sockets of something", 'cpu: "\\e[2J"', "printable"),
        ("host_id: made-up-host", "", "exactly kbench_host"),
    ],
)
def test_profiles_that_are_none(server: Path, old: str, new: str, says: str) -> None:
    assert SERVER.count(old) == 1
    server.write_text(SERVER.replace(old, new))
    with pytest.raises(UserError) as caught:
        read_host_profile(server)
    assert says in caught.value.message
