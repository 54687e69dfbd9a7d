"""A kernel with one choice of everything that is compiled into it: what is checked ahead of time, and may be tuned."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .chip import CHIPS


@dataclass(frozen=True, slots=True)
class KeptKernel:
    """What a launch compiles, said without Triton, by the file that launches it.

    Attributes:
        function: file and name in this folder, ``plane_kernels.few_rows``.
        configuration: what tells it from others of the function, for people: ``Q4_K, 1 x 32``.
        arguments: what is not compiled in, by parameter, as Triton writes types: ``*fp16``, ``i32``, ``fp32``.
        constants: what is compiled in, by parameter.
        multiples: parameters that are multiples of 16 besides pointers, whose memory torch aligns: Triton finds that
            out of arguments, and loads wide only what it knows to be aligned.
        wide_loads, wide_stores: whether it must read, or write, 16 bytes a thread at once.
        tensor_cores: whether it must multiply on them; without, it must not.
        registers: that a thread may have; 0: as many as the compiler likes. It then aims at some number, and may rather
            leave a value without one than take more.
        fp_fusion: whether a product and a sum may be rounded as one.
        chips: those of ``CHIPS`` on which it may be launched; elsewhere its file launches another configuration.
    """

    function: str
    configuration: str
    arguments: Mapping[str, str]
    constants: Mapping[str, Any]
    warps: int
    stages: int = 3
    multiples: tuple[str, ...] = ()
    wide_loads: bool = True
    wide_stores: bool = False
    tensor_cores: bool = False
    registers: int = 0
    fp_fusion: bool = True
    chips: tuple[int, ...] = tuple(CHIPS)

    @property
    def name(self) -> str:
        """Of the function alone: ``few_rows``."""
        return self.function.rpartition(".")[2]

    def load(self) -> Any:
        """Triton's function."""
        module, _, name = self.function.rpartition(".")
        return getattr(importlib.import_module(f".{module}", __package__), name)
