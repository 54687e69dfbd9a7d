"""A tune's result of a small model that does not exist: two devices, both phases, every kind of field."""

from __future__ import annotations

from typing import Any

N_LAYERS = 6
DEVICES = ("cpu", "cuda:0")
_SOURCE = {"cpu": "measured", "cuda:0": "modelled"}


def op(unit: str, op_name: str, module: str, phase: str, device: str, seconds: float, **more: Any) -> dict[str, Any]:
    """One row of ``ops``: by default 1 MB of weights at 2 FLOP per element, in layers 0 to 5."""
    tokens = 1 if phase == "decode" else 64
    elsewhere = [{"device": d, "seconds": 3 * seconds, "source": _SOURCE[d]} for d in DEVICES if d != device]
    row = {
        "op": op_name, "module": module, "phase": phase, "problem": f"{op_name}(n=1000,k=1000,tokens={tokens})",
        "device": device, "impl": "cpu.avx2", "threads": 2 if device == "cpu" else None, "seconds": seconds,
        "source": _SOURCE[device], "flops": 2e6 * tokens, "bytes_touched": 1e6,
        "elements_resident": 1000000, "resident_bytes": 1e6, "ai_touched": 2.0 * tokens, "ai_resident": 2.0,
        "n_calls": N_LAYERS, "unit": unit, "layers": f"0-{N_LAYERS - 1}", "alternatives": elsewhere,
        "seconds_by_threads": {"1": 1.9 * seconds, "2": seconds},
    }  # fmt: skip
    return {**row, **more}


def made_up() -> dict[str, Any]:
    """A fresh copy each time: tests change it."""
    ops = []
    for phase, slow in (("decode", 1.0), ("prefill", 20.0)):
        head = op("lm_head", "linear", "lm_head", phase, "cuda:0", 1e-4 * slow, n_calls=1, layers="")
        experts = op("routed experts", "moe_experts", "model.layers.*.mlp.experts", phase, "cpu", 2e-3 * slow)
        experts["layers"], experts["n_calls"] = "1-5", 5
        experts["alternatives"] = [{"device": "cuda:0", "seconds": None, "reason": "no kernel for routed experts"}]
        ops += [
            op("attention", "attention", "model.layers.*.self_attn", phase, "cuda:0", 5e-4 * slow, layers="0-3"),
            op(
                "attention", "attention", "model.layers.*.self_attn", phase, "cpu", 9e-4 * slow, layers="4-5", n_calls=2
            ),
            experts,
            op(
                "routed experts",
                "transfer",
                "model.layers.*.mlp.experts",
                phase,
                "cpu",
                1e-5,
                alternatives=[],
                source="modelled",
            ),
            head,
        ]
    memory = {"kv_bytes": 1 << 28, "workspace_bytes": 1 << 28, "margin_bytes": 1 << 29, "budget_bytes": 4 << 30}
    ceilings = [
        {
            "device": "cpu", "threads": n, "source": "measured",
            "bandwidth_bytes_per_s": 1e10 * n, "operations_per_s": 1e11 * n,
        }
        for n in (1, 2)
    ]  # fmt: skip
    card = {"device": "cuda:0", "label": "A card", "source": "modelled"}
    curve = [
        {
            "vram_bytes": gib << 30, "used_bytes": min(gib, 8) << 30, "dram_used_bytes": 1, "workload_seconds": 1.0,
            "decode_tokens_per_s": 10.0 + min(gib, 8), "prefill_tokens_per_s": 50.0 + min(gib, 8),
        }
        for gib in (0, 4, 8, 12, 16, 24, 32, 48)
    ]  # fmt: skip
    settings = [{"block": "default", "seconds": 2.0}, {"block": "panel=4", "seconds": 1.0}]
    return {
        "schema": "kbench.tune/1",
        "model": {
            "name": "Small-MoE", "arch": "deepseek2", "params": 10**10, "bytes": 6 << 30, "quant": "Q4_K_M",
            "source": "small.gguf",
        },
        "host_id": "0123456789ab",
        "host": {"cpu": "A processor", "cores": 2},
        "gpu": {"name": "card", "label": "A card", "source": "modelled"},
        "budgets": {"vram_bytes": 4 << 30, "dram_bytes": 8 << 30},
        "workload": {"prompt_tokens": 512, "gen_tokens": 128, "context": 1024},
        "ops": ops,
        "placement": {
            "cpu": {**memory, "weights_bytes": 5 << 30, "total_bytes": 11 << 29, "budget_bytes": 8 << 30},
            "cuda:0": {**memory, "weights_bytes": 1 << 30, "total_bytes": 3 << 29},
        },
        "predicted": {
            "decode_tokens_per_s": 14.0, "prefill_tokens_per_s": 54.0, "decode_interval": [12.0, 15.0],
            "prefill_interval": [50.0, 60.0], "source": "modelled",
        },
        "measured": {"decode_tokens_per_s": 13.0, "prefill_tokens_per_s": 55.0, "decode_interval": [12.5, 13.5]},
        "measured_reason": None,
        "error": {"decode": 0.08, "prefill": -0.02},
        "notes": ["while measuring: other processes used 46% of the CPU time"],
        "rules_path": "kbench-rules/small.yaml",
        "solver": {"status": "optimal", "gap": 0.0, "seconds": 20.0, "greedy_seconds": 21.0},
        "elapsed_s": 3.0,
        "created": "2026-01-01T00:00:00+00:00",
        "kbench_version": "0.1.0",
        "machine": {
            "cpu": "A processor", "physical_cores": 2, "logical_cpus": 4, "usable_cpus": 2, "memory_bytes": 16 << 30,
            "instruction_sets": ["avx2", "fma"], "caches": ["L1d 32 KiB × 2"], "numa_nodes": 1, "gpus": [],
            "system": "Linux", "versions": {"kbench": "0.1.0"},
        },
        "ceilings": [*ceilings, {**card, "bandwidth_bytes_per_s": 1e12, "operations_per_s": 1e14}],
        "vram_curve": curve,
        "what_if": [
            {
                "vram_bytes": 12 << 30, "decode_tokens_per_s": 18.0, "prefill_tokens_per_s": 58.0,
                "decode_ratio": 18 / 14,
            }
        ],
        "sensitivity": [
            {
                "device": "cuda:0", "extra_bytes": 1 << 30, "decode_tokens_per_s": 1.4,
                "prefill_tokens_per_s": -0.54,
            },
            {"device": "cpu", "extra_bytes": 1 << 30, "decode_tokens_per_s": 0.0, "prefill_tokens_per_s": 0.0},
        ],
        "presets": {"whole layers": 30.0, "n-cpu-moe": 20.0},
        "block_sweeps": [{"problem": "linear(n=1000)", "implementation": "cpu.avx2", "settings": settings}],
        "rules": "kbench: 1\nrules:\n- match: {name: \"^lm_head$\"}\n",
    }  # fmt: skip


def bare() -> dict[str, Any]:
    """What a result must have, and no more."""
    optional = (
        "measured_reason", "error", "rules_path", "elapsed_s", "created", "kbench_version", "machine", "ceilings",
        "vram_curve", "what_if", "sensitivity", "presets", "block_sweeps", "rules",
    )  # fmt: skip
    fields = {name: value for name, value in made_up().items() if name not in optional}
    fields |= {"measured": None, "host": None, "gpu": None, "notes": []}
    for row in fields["ops"]:
        del row["seconds_by_threads"]
    for memory in fields["placement"].values():
        del memory["margin_bytes"]
    for name in ("decode_interval", "prefill_interval"):
        del fields["predicted"][name]
    return fields
