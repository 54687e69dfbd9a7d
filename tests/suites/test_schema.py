"""The suite file: what is read, and where mistakes are pointed at."""

from __future__ import annotations

from pathlib import Path

import pytest

from kbench.core import Device, Problem, UserError, work
from kbench.kernels import implementation
from kbench.measure import host
from kbench.results import Store
from kbench.suites import Cell, expand, load_suite, matches, parse_suite, run_cells, select
from kbench.suites.gpu import GPU
from kbench.suites.schema import suites_root

needs_native = pytest.mark.skipif(
    not implementation("cpu.scalar").runnable().ok, reason=implementation("cpu.scalar").runnable().reason
)

GOOD = """suite: 1
name: two
implementations: [reference, torch]
threads: [1, max]
ops:
  linear:
  - {quant: [Q4_0, Q8_0], n: 32, k: 64, tokens: [1, 4]}
  attention:
  - {heads: 2, kv_heads: 1, d: 8, kv: f16, tokens: [1, 16], context: 8}
exclude: ["linear(quant=Q8_0*tokens=4*"]
"""


def test_the_product_of_the_axes() -> None:
    cells = expand(parse_suite(GOOD))
    threads = len({1, host().usable_cpus})
    # 4 linear problems less the excluded one; of attention only tokens <= context
    assert len(cells) == (3 + 1) * 2 * threads
    keys = [cell.key for cell in cells]
    assert keys[0] == "linear(quant=Q4_0,n=32,k=64,tokens=1,threads=1)"
    assert cells[0].implementation == "reference"
    assert "linear(quant=Q8_0,n=32,k=64,tokens=4,threads=1)" not in keys
    assert len(set(cells)) == len(cells)


def test_auto_and_all() -> None:
    text = GOOD.replace("[reference, torch]", "[WORD]")
    assert {cell.implementation for cell in expand(parse_suite(text.replace("WORD", "auto")))} < {
        cell.implementation for cell in expand(parse_suite(text.replace("WORD", "all")))
    }


@pytest.mark.parametrize(
    ("old", "new", "where", "message"),
    [
        ("suite: 1", "suite: 2", ":1", "suite is 2"),
        ("name: two", "nam: two", ":2", "did you mean name"),
        ("  linear:", "  liner:", ":6", "did you mean linear"),
        ("quant: [Q4_0, Q8_0]", "qant: [Q4_0, Q8_0]", ":7", "did you mean quant"),
        (", tokens: [1, 4]", "", ":7", "lacks tokens"),
        ("n: 32", "n: 0", ":7", "n is 0"),
        ("n: 32", "n: []", ":7", "n is empty"),
        ("n: 32", "n: true", ":7", "n is True"),
        ("threads: [1, max]", "threads: [0]", ":4", "threads is 0"),
        ("implementations: [reference, torch]", "implementations: [3]", ":3", "a list of texts"),
        ("  attention:\n  - {", "  attention: 3\n  rope:\n  - {", ":8", "attention is 3"),
        (
            "k: 64,",
            "k: 64, block: every,",
            ":7",
            "block is 'every' · accepted: a mapping of kernel parameters, or each",
        ),
        ("k: 64,", "k: 64, block: {a: []},", ":7", "a is empty"),
        ("k: 64,", "k: 64, block: {a: -1},", ":7", "a is -1"),
    ],
)
def test_mistakes_are_located(old: str, new: str, where: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(UserError) as caught:
        parse_suite(GOOD.replace(old, new), "s.yaml")
    assert f"s.yaml{where}:" in caught.value.message or f"s.yaml{where}" in caught.value.where
    assert message in caught.value.message


def test_what_only_this_machine_knows_is_checked_when_expanding() -> None:
    with pytest.raises(UserError, match="did you mean torch"):
        expand(parse_suite(GOOD.replace("reference, torch", "torhc")))
    with pytest.raises(UserError, match="unknown quant type 'Q4_9'"):
        expand(parse_suite(GOOD.replace("Q4_0", "Q4_9")))


def test_a_product_that_explodes_is_refused() -> None:
    many = f"[{','.join(str(i) for i in range(1, 200))}]"
    with pytest.raises(UserError, match="at most"):
        parse_suite(GOOD.replace("n: 32", f"n: {many}").replace("k: 64", f"k: {many}"))


def test_not_a_suite(tmp_path: Path) -> None:
    for text in ("", "- 1", "3", "suite: 1"):
        with pytest.raises(UserError):
            parse_suite(text)
    with pytest.raises(UserError, match="did you mean smoke"):
        load_suite("smok")
    with pytest.raises(UserError, match="no such file"):
        load_suite(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["smoke", "ops-cpu"])
def test_the_suites_that_come_with_it(name: str) -> None:
    suite = load_suite(name)
    assert suite.name == name
    assert len(expand(suite)) > 10


def test_filters() -> None:
    cells = expand(parse_suite(GOOD))
    assert {c.problem.op for c in select(cells, "attention")} == {"attention"}
    assert all("tokens=4" in c.key for c in select(cells, "linear(*tokens=4*"))
    assert {c.implementation for c in select(cells, "linear*threads=1) torch")} == {"torch"}
    assert select(cells, cells[3].key) == tuple(c for c in cells if c.key == cells[3].key)
    assert not matches("linear(n=1)", "linear(n=2)")
    with pytest.raises(UserError, match="matches no case"):
        select(cells, "conv")


BLOCKS = GOOD.replace("[reference, torch]", "[torch, WORD]").replace("[1, max]", "1").replace("k: 64,", "k: 64, BLOCK,")


@needs_native
def test_kernel_parameters_are_an_axis() -> None:
    def cells(block: str, quant: str = "[Q4_0, Q8_0]") -> list[str]:
        text = BLOCKS.replace("WORD", "cpu.scalar").replace("BLOCK", f"block: {block}").replace("[Q4_0, Q8_0]", quant)
        return [str(c) for c in expand(parse_suite(text, "s.yaml")) if c.problem.op == "linear"]

    key = "linear(quant=Q4_0,n=32,k=64,tokens=1,threads=1)"
    both = cells("{activation_planes: [1, 2]}")
    assert [one for one in both if one.startswith(key)] == [
        f"{key} torch",  # has none, and is measured once
        f"{key} cpu.scalar activation_planes=1",
        f"{key} cpu.scalar activation_planes=2",
    ]
    # Where a parameter changes nothing, there is one cell.
    assert f"{key} cpu.scalar".replace("Q4_0", "F32") in cells("{activation_planes: [1, 2]}", "[F32, Q4_0]")
    declared = implementation("cpu.scalar").block_parameters(Problem.parse(key.replace(",threads=1", "")))
    others = sum(len(parameter.candidates) - 1 for parameter in declared)
    assert len([one for one in cells("each") if one.startswith(f"{key} cpu.scalar")]) == 1 + others > 1
    for wrong, hint in (
        ("{activation_plans: 1}", "did you mean activation_planes"),
        ("{activation_planes: 9}", "1, 2"),
    ):
        with pytest.raises(UserError, match=hint) as caught:
            cells(wrong)
        assert caught.value.where == "s.yaml:7"


@needs_native
def test_a_filter_may_name_a_kernel_parameter() -> None:
    text = BLOCKS.replace("WORD", "cpu.scalar").replace("BLOCK", "block: {activation_planes: [1, 2]}")
    chosen = select(expand(parse_suite(text)), "cpu.scalar activation_planes=1")
    assert chosen and all(cell.block == {"activation_planes": 1} for cell in chosen)


def test_the_suites_that_come_with_kbench_expand() -> None:
    for path in suites_root().glob("*.yaml"):
        suite = load_suite(path)
        cells = expand(suite)
        assert cells or suite.engine or suite.claims, path
        for cell in cells:  # a shape that cannot be would be a record that says so, and be watched by nobody
            assert work(cell.problem).bytes_touched > 0, cell


def test_tags_pick_entries_of_operations() -> None:
    suite = parse_suite(GOOD.replace("tokens: [1, 4]}", "tokens: [1, 4], tags: [quick, products]}"))
    assert {cell.problem.op for cell in expand(suite.tagged(["products"]))} == {"linear"}
    with pytest.raises(UserError, match="accepted: products, quick"):
        suite.tagged(["slow"])


def test_what_needs_a_gpu_says_so() -> None:
    suite = parse_suite(
        GOOD.replace("[reference, torch]", "[torch, marlin]").replace("threads: [1, max]", "device: cuda")
    )
    cells = expand(suite)
    assert {cell.implementation for cell in cells} == {"torch", "marlin"} and {str(c.device) for c in cells} == {
        "cuda:0"
    }
    records = run_cells(cells[:2], None)
    assert all(record.status == "unsupported" and record.device == "cuda:0" for record in records)
    import torch

    if not torch.cuda.is_available():
        assert all("no CUDA GPU is here" in record.reason for record in records)
    for word, names in (("auto", {"torch"}), ("all", {"torch", "triton", "marlin"})):
        text = GOOD.replace("[reference, torch]", word).replace("threads: [1, max]", "device: cuda")
        assert {cell.implementation for cell in expand(parse_suite(text))} == names
    with pytest.raises(UserError, match="unknown device 'tpu'"):
        parse_suite(GOOD.replace("threads: [1, max]", "device: tpu"))


def test_cells_are_measured_on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Interpreted, in host memory: their times mean nothing, the records are what a GPU's would be."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr("kbench.suites.runner.has_gpu", lambda: True)
    monkeypatch.setattr("kbench.suites.gpu.has_gpu", lambda: True)
    problem = Problem.parse("linear(quant=Q4_0,n=32,k=64,tokens=1)")
    cells = [Cell(problem, name, 1, {}, GPU) for name in ("torch", "cpu.scalar")]
    store = Store(tmp_path)
    *found, refused = run_cells([*cells, Cell(problem, "torch", 1, {}, Device("cuda", 1))], store)
    assert [record.status for record in found] == ["ok", "unsupported"] and refused.status == "unsupported"
    assert "cpu.scalar keeps no tensors on a GPU" in found[1].reason and "not on cuda:1" in refused.reason
    record = found[0]
    assert record.device == "cuda:0" and len(record.samples) >= 7 and record.extra["error_share"] <= 1
    assert run_cells(cells[:1], store) == [record], "it is known"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("n: 32", "n: abc"), "<suite>:7: n is 'abc' · accepted: a positive number"),
        (("n: 32", f"n: {10**20}"), "<suite>:7: n is 1"),
        (("quant: [Q4_0, Q8_0]", "quant: 5"), "<suite>:7: quant is 5 · accepted: text"),
        (("threads: [1, max]", "threads: 100000"), "<suite>:4: threads is 100000 · accepted: 1 to 1024, or max"),
        (("threads: [1, max]", "threads: []"), "<suite>:4: threads is empty"),
        (("implementations: [reference, torch]", "implementations: []"), "<suite>:3: implementations is empty"),
        (("name: two", "name: ../two"), "<suite>:2: name is '../two'"),
        (("  attention:\n", "  rms_norm: []\n  attention:\n"), "<suite>:8: rms_norm is empty"),
    ],
)
def test_what_no_case_can_be_made_of_is_told_with_its_line(change: tuple[str, str], words: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(UserError) as caught:
        expand(parse_suite(GOOD.replace(*change).replace("reference, torch", "auto")))
    assert words in caught.value.message


@pytest.mark.parametrize(
    "key", ["linear(quant=Q4_K,n=²,k=256,tokens=1)", f"linear(quant=Q4_K,n={'9' * 5000},k=1,tokens=1)"]
)
def test_a_key_with_a_word_for_a_number_is_no_problem(key: str) -> None:
    with pytest.raises(UserError, match="accepted: a number"):
        Problem.parse(key)


@pytest.mark.parametrize(
    ("check", "words"),
    [
        ("check: generation, of: Q8_0, over: Q4_0, phase: writing", "phase is 'writing' · accepted: decode or prefill"),
        ("check: engines, of: kbench, over: llama.cpp, phase: x", "phase is 'x'"),
        ("check: memory, model: deepseek-v2-chat, what: gpus", "what is 'gpus' · accepted: gpu or host"),
        ("check: intensity, model: deepseek-v2-chat, what: x", "what is 'x' · accepted: attention or experts"),
    ],
)
def test_a_word_that_a_check_does_not_know_is_told_with_its_line(check: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_suite(f"suite: 1\nname: c\nclaims:\n- {{claim: c, source: s, {check}, at_least: 1}}\n")
    assert f"<suite>:4: {words}" in caught.value.message
