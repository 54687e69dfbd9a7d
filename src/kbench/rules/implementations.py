"""The implementations that a rule may name, KTransformers' names for them, and where each can run."""

from __future__ import annotations

from dataclasses import dataclass

from kbench.core import AUTO


@dataclass(frozen=True, slots=True)
class Op:
    """What ``generate_op`` or ``prefill_op`` names.

    ``kind`` is the kind of device it needs (empty: any), ``does`` the operator it belongs to (empty: any).
    """

    implementation: str
    kind: str = ""
    does: str = ""


# Instruction sets that native kernels are compiled for.
_ISAS = (
    "scalar", "avx2", "avx_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx", "neon_dotprod", "neon_i8mm",
)  # fmt: skip

OPS = {
    AUTO: Op(AUTO),
    "reference": Op("reference", "cpu"),
    "torch": Op("torch"),
    "triton": Op("triton", "cuda"),
    "marlin": Op("marlin", "cuda"),
    "cpu": Op(AUTO, "cpu"),
    **{f"cpu.{isa}": Op(f"cpu.{isa}", "cpu") for isa in _ISAS},
}

KT_OPS = {
    "KLinearTorch": Op("torch", "", "Linear"),
    "KLinearMarlin": Op("marlin", "cuda", "Linear"),
    "VLinearMarlin": Op("marlin", "cuda", "Linear"),
    "KLinearCPUInfer": Op(AUTO, "cpu", "Linear"),
    "KExpertsCPU": Op(AUTO, "cpu", "Experts"),
    # Nothing here rounds experts: they are multiplied as they are stored.
    "KExpertsMarlin": Op("triton", "cuda", "Experts"),
    "KExpertsTorch": Op("torch", "", "Experts"),
}

# `backend` of KExpertsCPU.
EXPERTS_BACKENDS = ("llamafile", "AMXBF16", "AMXInt8")
