"""Cache types and prefill steps to choose from: what is planned, what is chosen, what a partly filled step takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up_records import HOST_ID, records

from kbench.core import CPU, OverBudget, Phase, Unsupported, UserError
from kbench.results import Record, Store
from kbench.tuner import TuneRequest, cells, parse_chunks, parse_kv, replay, workload
from kbench.tuner.cost_model import CostModel, Roof
from kbench.tuner.forms import best_form
from kbench.tuner.tail import with_tail
from kbench.tuner.tune import plan_of

MODEL = "deepseek-v2-lite-chat"
REQUEST = TuneRequest(model=MODEL, vram_bytes=0, dram_bytes=32 << 30, context=2048)


def store_for(tmp_path: Path, requests: list[TuneRequest], faster: dict[str, float]) -> Store:
    """Records of everything that ``requests`` need; attention to caches of a type in ``faster`` takes that share."""
    found: dict[str, Record] = {}
    for request in requests:
        for record in records(cells(plan_of(request), (2,))):
            share = faster.get(str(record.problem.get("kv", "")), 1.0)
            found[record.key] = replace(record, samples=tuple(share * s for s in record.samples))
    store = Store(tmp_path)
    store.append(list(found.values()), suite="made-up")
    return store


def test_a_list_is_read_with_the_usual_first() -> None:
    assert parse_kv("q8_0, f16,q8_0") == ("q8_0", "f16")
    assert parse_kv("auto")[0] == "f16" and set(parse_kv("auto")) == {"f16", "bf16", "q8_0", "f32"}
    assert parse_chunks("512,256") == (512, 256) and parse_chunks("auto")[0] == 256
    for text in ("", "0", "x", "256,", "99999999", "²"):
        with pytest.raises(UserError, match="--chunk"):
            parse_chunks(text)
    with pytest.raises(UserError, match="--kv"):
        parse_kv("f16,f17")


def test_the_fastest_form_is_chosen_and_all_are_told(tmp_path: Path) -> None:
    forms = [replace(REQUEST, kv=kv, chunk=chunk) for kv in ("f16", "q8_0") for chunk in (256, 512)]
    store = store_for(tmp_path, forms, {"q8_0": 0.2})
    asked = replace(REQUEST, kv_choices=("f16", "q8_0"), chunk_choices=(256, 512))
    fields = replay(asked, store, HOST_ID, (2,)).fields
    tried = {(form["kv"], form["chunk"]): form["workload_seconds"] for form in fields["forms"]}
    assert set(tried) == {("f16", 256), ("q8_0", 256), ("q8_0", 512)}  # types first, then steps with the best type
    chosen = fields["workload"]["kv"], fields["workload"]["chunk"]
    assert chosen[0] == "q8_0" and tried[chosen] <= 1.02 * min(tried.values())
    alone = replay(replace(REQUEST, kv=chosen[0], chunk=chosen[1]), store, HOST_ID, (2,)).fields
    assert fields["predicted"] == alone["predicted"] and "forms" not in alone


def test_a_cache_that_fits_is_taken_where_the_usual_one_does_not(tmp_path: Path) -> None:
    small = replace(REQUEST, context=1 << 17, prompt_tokens=1024, gen_tokens=256)
    store = store_for(tmp_path, [replace(small, kv=kv) for kv in ("f16", "q8_0")], {})
    needs = {
        kv: replay(replace(small, kv=kv), store, HOST_ID, (2,)).fields["placement"]["cpu"]["total_bytes"]
        for kv in ("f16", "q8_0")
    }
    budget = (needs["f16"] + needs["q8_0"]) // 2
    fields = replay(replace(small, dram_bytes=budget, kv_choices=("f16", "q8_0")), store, HOST_ID, (2,)).fields
    assert fields["workload"]["kv"] == "q8_0"
    assert [form["workload_seconds"] is None for form in fields["forms"]] == [True, False]
    with pytest.raises(OverBudget):
        replay(replace(small, dram_bytes=needs["q8_0"] // 2, kv_choices=("f16", "q8_0")), store, HOST_ID, (2,))


def placing(seconds: dict[tuple[str, int], float | Exception]) -> tuple[Any, list[tuple[str, int]]]:
    asked: list[tuple[str, int]] = []

    def place(request: TuneRequest) -> Any:
        asked.append((request.kv, request.chunk))
        found = seconds[asked[-1]]
        if isinstance(found, Exception):
            raise found
        return "plan", SimpleNamespace(workload_seconds=found)

    return place, asked


def test_a_form_must_gain_something_and_time_ends() -> None:
    asked = replace(REQUEST, kv_choices=("f16", "bf16"), chunk_choices=(256, 512))
    place, _ = placing({("f16", 256): 1.0, ("bf16", 256): 0.99, ("f16", 512): 0.97})
    request, _, _, tried = best_form(asked, place)
    assert (request.kv, request.chunk) == ("f16", 512) and len(tried) == 3
    place, order = placing({("f16", 256): 1.0})
    request, _, _, tried = best_form(asked, place, late=lambda: True)
    assert order == [("f16", 256)] and len(tried) == 1


def test_a_type_that_the_model_cannot_have_is_passed_over() -> None:
    asked = replace(REQUEST, kv_choices=("f16", "q8_0"))
    place, _ = placing({("f16", 256): 1.0, ("q8_0", 256): Unsupported("vectors of 80")})
    assert best_form(asked, place)[0].kv == "f16"
    with pytest.raises(Unsupported):
        best_form(replace(asked, kv_choices=("q8_0", "f16")), place)


def test_a_prompt_shorter_than_a_step_is_one_form() -> None:
    short = replace(REQUEST, prompt_tokens=100, gen_tokens=10, chunk_choices=(256, 512))
    place, order = placing({("f16", 256): 1.0})
    best_form(short, place)
    assert order == [("f16", 256)]


def test_a_partly_filled_step_reads_weights_whole() -> None:
    """A model whose time is reading takes as long for a few tokens; one whose time is arithmetic, its share."""
    request = replace(REQUEST, prompt_tokens=256 + 32, gen_tokens=16)
    plan = plan_of(request)
    found = records(cells(plan, (2,)))

    def tail(roof: Roof) -> float:
        costs = CostModel(found, threads=(2,), roof=roof)
        of = with_tail(plan, costs, [CPU]).workload
        assert of.tail is not None and of.n_chunks == 1 + of.tail
        assert of.prefill_tokens_per_s(2.0) == pytest.approx(288 / (2.0 * of.n_chunks))
        return of.tail

    assert tail(Roof({2: 1e6}, {2: 1e18})) > 0.5  # of 256 tokens' experts 32 visit most
    # An eighth, and the head, which has one row in either.
    assert 1 / 8 <= tail(Roof({2: 1e18}, {2: 1e6})) < 0.16
    assert 1 / 8 <= tail(Roof()) < 0.16
    whole = plan_of(replace(request, prompt_tokens=512))
    assert with_tail(whole, CostModel(found, threads=(2,)), [CPU]) is whole


def test_the_workload_counts_the_tail() -> None:
    wanted = workload(replace(REQUEST, prompt_tokens=288, gen_tokens=16))
    assert wanted.tail_tokens == 32 and wanted.n_chunks == 288 / 256
    assert replace(wanted, tail=0.5).times[Phase.PREFILL] == 1.5
