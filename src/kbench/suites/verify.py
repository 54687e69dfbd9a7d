"""Checks an implementation on a cell before it is timed: on a few rows, so that it costs milliseconds."""

from __future__ import annotations

import dataclasses

import numpy as np

from kbench.core import quant
from kbench.kernels import Example, Implementation, Prepared, Verdict, WeightData, op_spec

# Rows of a matrix and tokens that are compared. A kernel that is wrong is wrong in whole tiles of 16 rows or in whole
# blocks of a row; 64 rows are spread over all of the matrix and hold its first and its last.
ROWS = 64
TOKENS = 16
# Latent attention has up to 128 heads: its truth takes seconds for more tokens.
MLA_TOKENS = 2


def _row_sample(n: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.unique(np.linspace(0, n - 1, min(n, ROWS)).astype(np.intp))


def _some_rows(weight: WeightData, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> WeightData:
    if len(weight.shape) == 1:  # a bias
        raw = weight.raw.reshape(weight.shape[0], -1)[rows]
        return WeightData(weight.name, weight.quant, (len(rows),), np.ascontiguousarray(raw).reshape(-1))
    raw = weight.raw.reshape(-1, quant(weight.quant).row_bytes(weight.shape[0]))[rows]
    return WeightData(weight.name, weight.quant, (weight.shape[0], len(rows)), np.ascontiguousarray(raw).reshape(-1))


def _last_tokens(case: Example, count: int) -> Example:
    """The same call for its last ``count`` tokens; attention finds the earlier ones in the cache."""
    tokens = case.call.problem.integer("tokens")
    if tokens <= count or case.call.op == "take_last":
        return case
    skipped = tokens - count
    state = dataclasses.replace(case.state, tokens=case.state.tokens[skipped:], position=case.state.position + skipped)
    call = dataclasses.replace(case.call, problem=case.call.problem.replace(tokens=count))
    return Example(call, case.weights, tuple(a[skipped:] for a in case.inputs), state)


def _one_expert(case: Example) -> Example:
    """Every token goes to expert 0 alone: its three matrices are the truth to compute instead of all experts'."""
    call = dataclasses.replace(case.call, problem=case.call.problem.replace(top_k=1))
    x, ids, scores = case.inputs
    return dataclasses.replace(case, call=call, inputs=(x, np.zeros_like(ids[:, :1]), scores[:, :1].copy()))


def _first_expert(weight: WeightData) -> WeightData:
    experts = weight.shape[-1]
    return WeightData(weight.name, weight.quant, (*weight.shape[:-1], 1), weight.raw[: weight.raw.size // experts])


def verify(item: Implementation, case: Example, prepared: Prepared, threads: int) -> Verdict:
    """Runs ``case`` once and compares a sample of the outputs with the float64 definition."""
    op = case.call.op
    if op == "moe_experts":
        case = _one_expert(case)
    outputs = item.run(case.call, prepared, case.inputs, case.state, threads)
    for got, value in zip(outputs, case.call.outputs, strict=True):
        rows = 1 if value.rows == "one" else case.call.problem.integer("tokens")
        if got.shape != (rows, value.width):
            return Verdict(False, np.inf, f"{value.name} has shape {got.shape} instead of {(rows, value.width)}")
    sample = _last_tokens(case, MLA_TOKENS if op.startswith("mla_") else TOKENS)
    if op != "take_last":
        outputs = [got[-sample.call.problem.integer("tokens") :] for got in outputs]
    if op == "linear":
        rows_taken = _row_sample(sample.call.problem.integer("n"))
        weights = tuple(_some_rows(weight, rows_taken) for weight in sample.weights)
        call = dataclasses.replace(sample.call, problem=sample.call.problem.replace(n=len(rows_taken)))
        sample = dataclasses.replace(sample, call=call, weights=weights)
        outputs = [outputs[0][:, rows_taken]]
    elif op == "moe_experts":
        call = dataclasses.replace(sample.call, problem=sample.call.problem.replace(experts=1))
        sample = dataclasses.replace(sample, call=call, weights=tuple(_first_expert(w) for w in sample.weights))
    return op_spec(op).check(item, sample, outputs)
