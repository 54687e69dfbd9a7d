"""One thing to measure: a problem, by an implementation, with a number of threads."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbench.core import CPU, Block, Device, Problem
from kbench.results import case_key, problem_params


@dataclass(frozen=True, slots=True)
class Cell:
    """``block`` holds kernel parameters by name; empty means the implementation's own choice."""

    problem: Problem
    implementation: str
    threads: int
    block: Block = field(default_factory=dict, hash=False)
    device: Device = CPU

    @property
    def key(self) -> str:
        """E.g. ``linear(quant=Q4_K,n=1536,k=5120,tokens=1,threads=2)``: the case, without the implementation."""
        return case_key(self.problem.op, {**problem_params(self.problem), "threads": self.threads})

    def __str__(self) -> str:
        block = "".join(f" {name}={value}" for name, value in self.block.items())
        return f"{self.key} {self.implementation}{'' if self.device == CPU else f' {self.device}'}{block}"
