"""Kernel parameters: what is declared, what is accepted, and that every value of every one computes the same thing."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from kbench.core import CPU, Device, Problem, UserError
from kbench.kernels import BlockParameter, block_errors, example, implementation, implementations, op_spec

native = pytest.importorskip("kbench.kernels.cpu._native")

ISAS = [name for name, _ in native.isas()]
RUNNABLE = [name for name, missing in native.isas() if not missing]
DECLARED = implementation("cpu.scalar").block_parameters()
each = pytest.mark.parametrize("parameter", DECLARED, ids=lambda parameter: parameter.name)


@each
def test_a_declaration_holds_together(parameter: BlockParameter) -> None:
    assert parameter.name.isidentifier() and parameter.unit and parameter.reason.endswith(".")
    assert parameter.accepts(parameter.default) and all(map(parameter.accepts, parameter.candidates))
    assert parameter.default in parameter.candidates
    assert len(parameter.candidates) > 1 or parameter.name == "layout"  # where weights live is chosen by hand
    order = [parameter.choices.index(str(c)) if parameter.choices else c for c in parameter.candidates]
    assert order == sorted(set(order))  # type: ignore[type-var]
    if parameter.choices:
        assert parameter.low == 0 and parameter.high == len(parameter.choices) - 1


@each
def test_python_and_the_program_accept_the_same(parameter: BlockParameter) -> None:
    program = native.Program(native.Pool(1), _arena(), 1)
    low, high, step = parameter.low, parameter.high, parameter.multiple
    near = [value + offset for value in (low, high, int(step), 0) for offset in (-step, -1, 0, 1, step)]
    for value in (*parameter.candidates, *([] if parameter.choices else near), "nonsense"):
        try:
            program.set_parameter(parameter.name, value)
        except ValueError as error:
            assert not parameter.accepts(value)
            assert str(error).endswith(f"accepted: {parameter.accepted}")
        else:
            assert parameter.accepts(value), value
    assert not parameter.accepts(True) and not parameter.accepts(None)


def test_every_instruction_set_knows_every_name() -> None:
    names = [parameter.name for parameter in DECLARED]
    assert len(names) == len(set(names))
    for isa in ISAS:
        assert [parameter.name for parameter in implementation(f"cpu.{isa}").block_parameters()] == names
    with pytest.raises(ValueError, match="unknown kernel parameter 'planes', accepted: activation_planes"):
        native.Program(native.Pool(1), _arena(), 1).set_parameter("planes", 1)
    with pytest.raises(ValueError, match="avx3"):
        native.block_parameters("avx3")


def test_a_problem_has_the_parameters_that_change_it() -> None:
    def names(key: str) -> list[str]:
        return [parameter.name for parameter in implementation("cpu.scalar").block_parameters(Problem.parse(key))]

    assert "activation_planes" in names("linear(quant=Q4_K,n=16,k=256,tokens=1)")
    assert "activation_planes" not in names("linear(quant=F32,n=16,k=256,tokens=1)")
    mixed = "moe_experts(experts=2,top_k=1,n=32,k=32,quant_gate=F16,quant_up=F16,quant_down=Q8_0,tokens=1)"
    assert "activation_planes" in names(mixed)
    assert names("add(d=8,tokens=1)") == []
    # Products of heads are cut by head and position, which is not a choice.
    heads = next(key for key in KEYS if key.startswith("mla_decompressed"))
    assert "partition" in names(mixed)
    assert "activation_planes" in names(heads) and "partition" not in names(heads)

    def numbers(tokens: int) -> set[str]:
        problem = Problem.make("linear", quant="Q4_K", n=16, k=256, tokens=tokens)
        return {parameter.name for parameter in implementation("cpu.avx2").block_parameters(problem)}

    # One token is multiplied in the order of memory; with many, lines are out of the question.
    assert numbers(1) == {"activation_planes", "layout", "prefetch_bytes", "partition"}
    assert numbers(8) == numbers(100) | {"panel_tokens"} > numbers(100) > numbers(1)
    assert implementation("reference").block_parameters() == implementation("torch").block_parameters() == ()


# One token, a few, and more than any switch from one kind of kernel to another; rows that are no multiple of a tile.
KEYS = [
    *(
        f"linear(quant={quant},n=40,k=512,tokens={tokens})"
        for quant in ("Q4_K", "Q8_0", "F16")
        for tokens in (1, 9, 70)
    ),
    "head_linear(quant=Q8_0,heads=3,n=24,k=64,tokens=3)",
    "mla_decompressed(quant_k=Q4_K,quant_v=Q4_K,heads=2,kv_lora=256,rope=8,nope=24,v=16,kv=f16,tokens=20,context=70)",
    *(
        f"moe_experts(experts=3,top_k=2,n=64,k=256,quant_gate=Q4_K,quant_up=Q4_K,quant_down=Q8_0,tokens={tokens})"
        for tokens in (1, 70)
    ),
]


@pytest.mark.parametrize("isa", RUNNABLE)
@pytest.mark.parametrize("key", KEYS)
def test_every_candidate_computes_the_definition(key: str, isa: str) -> None:
    problem, item = Problem.parse(key), implementation(f"cpu.{isa}")
    case = example(problem, np.random.default_rng(3))
    prepared = item.prepare(problem, case.weights)
    for parameter in item.block_parameters():
        for value in parameter.candidates:
            call = dataclasses.replace(case.call, block={parameter.name: value})
            outputs = item.run(call, prepared, case.inputs, case.state, 2)
            verdict = op_spec(problem.op).check(item, dataclasses.replace(case, call=call), outputs)
            assert verdict.ok, f"{parameter.name}={value}: {verdict.reason}"


def test_a_parameter_holds_for_the_steps_recorded_after_it() -> None:
    rng = np.random.default_rng(0)
    raw = rng.integers(0, 256, (16, 34), dtype=np.uint8)
    raw[:, :2] = np.full(16, 0.01, np.float16)[:, None].view(np.uint8)
    w = native.pack("Q8_0", raw.reshape(-1), 16, 32)
    arena = _arena()
    arena[:128].view(np.float32)[:] = rng.standard_normal(32)
    program = native.Program(native.Pool(1), arena, 1)
    places = [128, 192, 256, 320]
    program.linear("scalar", w, 0, places[0])
    program.set_parameter("activation_planes", 1)
    assert program.activation_planes == 1
    program.linear("scalar", w, 0, places[1])
    program.reset_parameters()
    program.linear("scalar", w, 0, places[2])
    program.activation_planes = 1
    program.linear("scalar", w, 0, places[3])
    program.run(np.zeros(1, np.int32), 0)
    two, one, again, property_ = (arena[place : place + 64].view(np.float32).copy() for place in places)
    assert np.array_equal(two, again) and np.array_equal(one, property_)
    assert not np.array_equal(one, two)


def test_values_reach_the_kernels() -> None:
    """Panels round activations to other integers than lines: the same product differs in its last digits."""
    if "avx2" not in RUNNABLE:
        pytest.skip("not runnable: the scalar kernels have no panels")
    problem = Problem.parse("linear(quant=Q8_0,n=16,k=256,tokens=5)")
    item, results = implementation("cpu.avx2"), {}
    case = example(problem, np.random.default_rng(0))
    prepared = item.prepare(problem, case.weights)
    for tokens in (1, 5, 6):
        call = dataclasses.replace(case.call, block={"panel_tokens": tokens})
        (results[tokens],) = item.run(call, prepared, case.inputs, case.state, 1)
    assert np.array_equal(results[1], results[5])  # 5 tokens are enough for either
    assert not np.array_equal(results[5], results[6])


def test_what_is_wrong_with_a_block() -> None:
    auto, scalar, torch = ("auto", CPU), ("cpu.scalar", CPU), ("torch", CPU)
    assert block_errors({}, [torch]) == block_errors({"activation_planes": 1}, [auto, scalar]) == {}
    errors = block_errors({"activation_plans": 1, "activation_planes": "two"}, [scalar, auto], "here")
    assert str(errors["activation_plans"]).startswith("here: unknown kernel parameter 'activation_plans' · accepted: ")
    assert str(errors["activation_plans"]).endswith("did you mean activation_planes?")
    assert str(errors["activation_planes"]) == "here: activation_planes is two · accepted: 1, 2"
    # One that has none leaves the judgement to the other; alone, it has something to say.
    assert block_errors({"activation_planes": 1}, [scalar, torch]) == {}
    assert str(block_errors({"activation_planes": 1}, [torch])["activation_planes"]) == (
        "unknown kernel parameter 'activation_planes' · torch has no kernel parameters"
    )
    assert "block_m" in block_errors({"block_m": 64}, [("triton", Device("cuda")), scalar])
    triton = ("triton", Device("cuda"))
    assert block_errors({"activation_planes": 1}, [triton, scalar]) == {}, "a GPU's kernels pass over it"
    assert block_errors({"tile": "lanes2"}, [triton]) == {}
    assert "tile" in block_errors({"tile": "lanes2"}, [triton, scalar]), "which the CPU's refuse"
    assert "accepted: auto, lanes1" in str(block_errors({"tile": "lanes3"}, [triton])["tile"])
    marlin = ("marlin", Device("cuda"))
    assert block_errors({"group": 64, "tile": "16x64w4s4", "parts": 4}, [marlin]) == {}
    assert str(block_errors({"group": 96}, [marlin])["group"]) == "group is 96 · accepted: 64, 128"
    assert "group" in block_errors({"group": 64}, [("auto", Device("cuda"))]), "auto never rounds weights"
    # Nothing is known of what another package brings.
    assert block_errors({"block_m": 64}, [("machete", Device("cuda")), scalar]) == {}


def test_a_call_with_a_parameter_that_is_none_is_refused() -> None:
    problem = Problem.parse("linear(quant=Q8_0,n=16,k=32,tokens=1)")
    item = implementation("cpu.scalar")
    case = example(problem, np.random.default_rng(0))
    call = dataclasses.replace(case.call, block={"activation_planes": 3})
    with pytest.raises(UserError, match="activation_planes is 3 · accepted: 1, 2"):
        item.run(call, item.prepare(problem, case.weights), case.inputs, case.state, 1)


def test_rules_can_name_every_implementation_and_ranking_knows_it() -> None:
    from kbench.core import parse_yaml
    from kbench.kernels.registry import RANKING
    from kbench.rules import check, parse_rules

    for item in implementations():
        assert item.name in RANKING
        kwargs = f"{{generate_op: {item.name}, generate_device: {item.device_kind}}}"
        text = f"- match: {{name: lm_head}}\n  replace: {{class: Linear, kwargs: {kwargs}}}\n"
        assert check(parse_rules(parse_yaml(text))) == [], item.name


def _arena() -> np.ndarray:
    raw = np.zeros(4096 + 64, np.uint8)
    begin = -raw.ctypes.data % 64
    return raw[begin : begin + 4096]
