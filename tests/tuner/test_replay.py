"""Planning DeepSeek-V2 from made-up records alone: where things go, what fits, that rules say the same."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import pytest
from made_up_records import HOST_ID, records

from kbench.core import CPU, Device, OverBudget, Phase, Placement, UserError, parse_size, parse_yaml
from kbench.model import load_descriptor, lower
from kbench.results import Store
from kbench.rules import assign, check, parse_rules
from kbench.tuner import TuneReport, TuneRequest, cells, make_plan, replay, workload

GPU = Device("cuda", 0)
MODEL = "deepseek-v2-chat"
THREADS = (1, 2)


def request(vram: str = "21G", dram: str = "136G", **more: object) -> TuneRequest:
    return TuneRequest(model=MODEL, vram_bytes=parse_size(vram), dram_bytes=parse_size(dram), **more)  # type: ignore[arg-type]


@functools.lru_cache(maxsize=1)
def _store_lines(root: Path) -> Store:
    store = Store(root)
    for context in (4096, 512):
        asked = request(context=context)
        plan = make_plan(load_descriptor(MODEL)[0], asked, workload(asked))
        store.append(records(cells(plan, THREADS)), suite="made-up")
    return store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return _store_lines(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def report(store: Store) -> TuneReport:
    return replay(request(), store, HOST_ID, THREADS)


def devices_of(report: TuneReport, suffix: str) -> set[Device]:
    return {p.generate_device for name, p in report.assignment.items() if name.endswith(suffix)}


def test_attention_and_shared_experts_go_to_the_gpu_and_routed_experts_stay(report: TuneReport) -> None:
    assert report.fields["solver"]["status"] == "optimal"
    for suffix in (".self_attn", "_proj", ".kv_a_proj_with_mqa", "lm_head"):
        assert devices_of(report, suffix) == {GPU}, suffix
    assert devices_of(report, ".mlp.experts") == {CPU}
    assert report.assignment["model.embed_tokens"].generate_device == CPU
    assert sum(name.endswith(".mlp.experts") for name in report.assignment) == 59


def test_totals_are_within_budget_and_count_everything(report: TuneReport) -> None:
    placement = report.fields["placement"]
    for memory in placement.values():
        lines = ("weights", "kv", "workspace", "runtime", "pinned", "loading")
        parts = sum(memory[f"{line}_bytes"] for line in lines)
        assert memory["total_bytes"] == parts <= memory["budget_bytes"] - memory["margin_bytes"]
    # Nothing is lost between the devices; kv_b's k half is kept in F16 instead of Q4_K for
    # decode, and both halves for prefill, which multiplies latents out.
    model = load_descriptor(MODEL)[0]
    half = 60 * 128 * 512 * 128
    grown = half * 2 + half * 144 // 256
    assert sum(m["weights_bytes"] for m in placement.values()) == model.n_bytes + grown
    assert sum(m["kv_bytes"] for m in placement.values()) == 4096 * 60 * 576 * 2
    # The cache lies where attention runs.
    assert placement["cpu"]["kv_bytes"] == 0


def test_the_report_says_what_is_modelled(report: TuneReport) -> None:
    assert report.fields["predicted"]["source"] == "modelled"
    for row in report.fields["ops"]:
        crosses = row["op"] == "transfer"
        assert row["source"] == ("modelled" if row["device"] != "cpu" or crosses else "measured"), row
        assert (row["measured_as"] is None) == (row["source"] == "modelled")
    low, high = report.fields["predicted"]["decode_interval"]
    assert low < report.fields["predicted"]["decode_tokens_per_s"] < high


def test_the_rules_read_back_as_the_assignment_and_pass_the_check(report: TuneReport) -> None:
    tree = make_plan(load_descriptor(MODEL)[0], request(), workload(request())).tree
    rules = parse_rules(parse_yaml(report.rules_text), "emitted")
    assert assign(rules, tree, Placement()) == report.assignment
    assert [finding for finding in check(rules, tree) if finding.severity == "error"] == []


def test_the_objective_is_the_price_of_what_the_engine_would_run(report: TuneReport) -> None:
    work = report.fields["workload"]
    predicted = report.fields["predicted"]
    total = work["prompt_tokens"] / predicted["prefill_tokens_per_s"]
    total += work["gen_tokens"] / predicted["decode_tokens_per_s"]
    assert total == pytest.approx(report.fields["solver"]["seconds"], rel=1e-9)


def test_the_same_records_give_the_same_answer(store: Store, report: TuneReport) -> None:
    again = replay(request(), store, HOST_ID, THREADS)
    assert {**again.fields, "elapsed_s": 0} == {**report.fields, "elapsed_s": 0}
    assert again.rules_text == report.rules_text


def test_more_vram_never_predicts_a_slower_model(store: Store) -> None:
    sizes = ("2G", "4G", "21G")
    times = [replay(request(vram), store, HOST_ID, THREADS).fields["solver"]["seconds"] for vram in sizes]
    assert all(after <= before * (1 + 1e-9) for before, after in itertools.pairwise(times)), times
    assert times[-1] < 0.8 * times[0]


def test_no_gpu_is_all_cpu_and_measured(store: Store) -> None:
    report = replay(request("0", "140G"), store, HOST_ID, THREADS)
    assert set(report.fields["placement"]) == {"cpu"}
    assert report.fields["predicted"]["source"] == "measured"
    assert {p.generate_device for p in report.assignment.values()} == {CPU}


def test_a_budget_that_is_too_small_says_what_is_missing(store: Store) -> None:
    with pytest.raises(OverBudget) as caught:
        replay(request("21G", "100G"), store, HOST_ID, THREADS)
    message = caught.value.message
    assert caught.value.exit_code == 1
    assert "DRAM" in message and "short" in message and "--dram 127" in message and "or use --quant Q3_K_M" in message
    needed = float(message.partition("--dram ")[2].partition("G")[0])
    assert replay(request("21G", f"{needed}G"), store, HOST_ID, THREADS).fields["solver"]["status"] == "optimal"


def test_a_smaller_context_is_offered_when_it_fits(store: Store) -> None:
    base = replay(request("0", "140G", context=4096), store, HOST_ID, THREADS).fields["placement"]["cpu"]
    almost = base["total_bytes"] - base["kv_bytes"] // 4
    with pytest.raises(OverBudget, match="--context 2048"):
        replay(request("0", str(almost)), store, HOST_ID, THREADS)


def test_missing_records_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without a price"):
        replay(request("0", "140G"), Store(tmp_path), HOST_ID, THREADS)


def test_phases_are_priced_from_the_same_lowering(report: TuneReport) -> None:
    asked = request()
    wanted = workload(asked)
    model, _ = load_descriptor(MODEL)
    calls = lower(model, report.assignment, Phase.DECODE, 1, wanted.decode_context, resolve=lambda p, d: "auto")
    decode = [row for row in report.fields["ops"] if row["phase"] == "decode"]
    assert sum(row["n_calls"] for row in decode) == len(calls)
    assert {row["problem"] for row in decode} == {call.problem.key for call in calls}


def test_a_gpu_too_small_for_anything_is_left_out_and_said_so(store: Store) -> None:
    report = replay(request("1G", "140G"), store, HOST_ID, THREADS)
    assert report.fields["placement"]["cuda:0"]["total_bytes"] == 0
    assert {p.generate_device for p in report.assignment.values()} == {CPU}
    assert "cuda:0 is not used" in report.fields["notes"][0]


def test_more_memory_than_the_card_has_is_planned_and_said(store: Store) -> None:
    for vram, told in (("24G", False), ("30G", True)):
        notes = replay(request(vram, "140G"), store, HOST_ID, THREADS).fields["notes"]
        assert any("RTX 4090 has 24" in note for note in notes) == told, notes
