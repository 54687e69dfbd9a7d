"""The steps of ``gpu_check.py``, each in a process of its own: ``python scripts/gpu_check_steps.py STEP [--small]``.

A step prints rows, a JSON object a line, each as soon as it is known, so that a crash or a hang loses none. A row has a
``case`` and a ``result`` (``ok wrong crashed unsupported skipped``), with a ``value`` in ``unit`` where it is a figure,
and ``at_least`` or ``at_most`` where something is expected of it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kbench.core import CPU, OPS, Device, KbenchError, Placement, Problem, quant, work
from kbench.kernels import WEIGHT_TYPES, Implementation, check, example, implementations, on_tensors
from kbench.suites.gpu_side import GpuSide, HostBorder, cache_bytes, place

ROOT = Path(__file__).parents[1]
SUITE = ROOT / "suites" / "gpu-check.yaml"
# Processes that share the cases of one operation: compiling takes longer than checking.
SHARDS = 4

Axes = Mapping[str, tuple[Any, ...]]
# Shapes of every operation: one row and few, more than a tile and less, columns and rows that fill no tile. What an
# implementation takes of them is asked of it.
SHAPES: dict[str, list[Axes]] = {
    "linear": [
        {"n": (320,), "k": (1024,), "tokens": (1, 4, 5, 64)},
        {"n": (37,), "k": (768,), "tokens": (3, 17)},
        {"n": (64,), "k": (1408,), "tokens": (2,)},
    ],
    "embedding": [{"vocab": (1000,), "d": (1024,), "tokens": (1, 7)}],
    "head_linear": [{"heads": (16,), "n": (128,), "k": (512,), "tokens": (1, 5)}],
    "moe_experts": [{"experts": (8,), "top_k": (2,), "n": (256,), "k": (512,), "tokens": (1, 5, 40)}],
    "moe_router": [{"experts": (64,), "top_k": (6,), "k": (512,), "tokens": (1, 33)}],
    "rms_norm": [{"d": (1024, 100), "rows": (1, 3), "tokens": (1, 33)}],
    "rope": [{"heads": (8,), "d": (64,), "tokens": (1, 33)}],
    "attention": [
        {"heads": (8,), "kv_heads": (2,), "d": (64, 128), "kv": ("f16", "bf16"), "tokens": (1, 9), "context": (100,)},
        {"heads": (8,), "kv_heads": (8,), "d": (64,), "kv": ("f16",), "tokens": (5,), "context": (90,),
         "window": (32,)},
    ],
    "mla_attention": [
        {"heads": (16, 128), "kv_lora": (512,), "rope": (64,), "kv": ("bf16",), "tokens": (1,),
         "context": (1, 77, 4096)},
        {"heads": (16,), "kv_lora": (512,), "rope": (64,), "kv": ("f16",), "tokens": (5,), "context": (100,)},
    ],
    "mla_decompressed": [
        {"heads": (4,), "kv_lora": (512,), "rope": (64,), "nope": (128,), "v": (128,), "kv": ("bf16",), "tokens": (9,),
         "context": (40,)},
    ],
    "silu_mul": [{"n": (1000,), "tokens": (1, 33)}],
    "add": [{"d": (1000,), "tokens": (1, 33)}],
    "gated_add": [{"d": (1000,), "tokens": (1, 33)}],
    "take_last": [{"d": (1000,), "tokens": (3,)}],
    "top_logits": [{"vocab": (5000,), "top_k": (40,), "tokens": (1,)}],
}  # fmt: skip
# Types of an expert's three matrices, besides all of one: as quantizers mix them.
_MIXED = (("Q4_K", "Q4_K", "Q6_K"), ("Q4_K", "Q4_K", "Q8_0"), ("IQ2_XXS", "IQ2_XXS", "Q2_K"))


def emit(case: str, result: str = "ok", **fields: Any) -> None:
    """Prints a row; a figure that is none is wrong."""
    if not math.isfinite(fields.get("value", 0.0)):
        fields["value"], result = 1e9, "wrong"
    print(json.dumps({"case": case, "result": result, **fields}), flush=True)


def gpu_implementations() -> list[Implementation]:
    """What has kernels of its own for a GPU, and can run here."""
    return [item for item in implementations() if item.device_kind == "cuda" and item.runnable().ok]


def problems(op: str) -> Iterator[Problem]:
    """Every shape of ``op`` in every type."""
    for axes in SHAPES[op]:
        for values in itertools.product(*axes.values()):
            shape = dict(zip(axes, values, strict=True))
            if "quant" in OPS[op]:
                row = shape["k" if "k" in shape else "d"]
                fitting = (name for name in WEIGHT_TYPES if row % quant(name).block_elements == 0)
                yield from (Problem.make(op, quant=name, **shape) for name in fitting)
            elif op == "moe_experts":
                for names in (*((name,) * 3 for name in WEIGHT_TYPES), *_MIXED):
                    types = dict(zip(("quant_gate", "quant_up", "quant_down"), names, strict=True))
                    yield Problem.make(op, **types, **shape)
            elif op == "mla_decompressed":
                yield from (Problem.make(op, quant_k=name, quant_v=name, **shape) for name in ("Q4_K", "Q8_0"))
            else:
                yield Problem.make(op, **shape)


def cases(op: str) -> list[tuple[Implementation, Problem]]:
    """What is taken of ``problems`` by whom."""
    items = gpu_implementations()
    return [(item, problem) for problem in problems(op) for item in items if item.supports(problem).ok]


def correct(op: str, shard: int, small: bool) -> None:
    """Against the float64 definition, within the bounds of the implementation's accuracy class."""
    chosen = cases(op)
    if small:  # one shape, and two types of each way to read them
        seen: set[tuple[str, str]] = set()
        few = [pair for pair in chosen if pair[1].integer("tokens") <= 5]
        types = ("Q4_K", "IQ2_XXS")
        chosen = []
        for item, problem in few:
            of = str(next((problem[name] for name in OPS[op] if name.startswith("quant")), ""))
            if (item.name, of) not in seen and of in ("", *types):
                seen.add((item.name, of))
                chosen.append((item, problem))
    for item, problem in chosen[shard :: 1 if small else SHARDS]:
        name = f"{item.name} {problem.key}"
        try:
            device = on_tensors(item.name, place())
            assert device is not None, "it keeps no tensors on a GPU"
            made = example(problem, np.random.default_rng(1), bias=op == "linear")
            prepared = device.prepare(problem, made.weights)
            y = HostBorder(device).run(made.call, prepared, made.inputs, made.state, 1)
            found = check(made.call, made.weights, made.inputs, made.state, y, device.accuracy(problem))
            share = min(found.worst, 1e9)
            emit(name, "ok" if found.ok else "wrong", value=share, unit="of its bound", at_most=1.0, text=found.reason)
        except KbenchError as error:
            emit(name, "unsupported", text=error.message)
        except Exception as error:  # the next case may do
            emit(name, "crashed", text=f"{type(error).__name__}: {error}"[:300])


def seconds_of(run: Callable[[], object], repeat: int = 20) -> float:
    """The least of five times ``repeat`` calls, by the GPU's clock."""
    import torch

    run()
    found = []
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        for _ in range(repeat):
            run()
        end.record()
        end.synchronize()
        found.append(float(begin.elapsed_time(end)) / 1e3 / repeat)
    return min(found)


def machine(_: str, __: int, small: bool) -> None:
    """What is here, and what it can do at most."""
    import torch
    import triton

    emit("versions", text=f"torch {torch.__version__}, triton {triton.__version__}, python {sys.version.split()[0]}")
    from kbench.kernels import isas

    try:
        emit("native kernels", text=f"{len(isas())} instruction sets")
    except KbenchError as error:
        emit("native kernels", "skipped", text=error.message)
    if place() == "cpu":
        emit("device", "skipped", text="Triton interprets: right or wrong, no speed")
        return
    about = torch.cuda.get_device_properties(0)
    emit("device", text=f"{about.name}, sm_{about.major}{about.minor}, {about.multi_processor_count} multiprocessors")
    emit("memory", value=about.total_memory / 2**30, unit="GiB")
    emit("last-level cache", value=cache_bytes() / 2**20, unit="MiB")
    n_bytes = (256 if small else 4096) << 20
    big = torch.ones(n_bytes // 4, dtype=torch.float32, device="cuda:0")
    other = torch.empty_like(big)
    reading = n_bytes / seconds_of(big.sum, 5)
    copying = 2 * n_bytes / seconds_of(functools.partial(other.copy_, big), 5)
    emit(
        "bandwidth",
        value=max(reading, copying) / 1e9,
        unit="GB/s",
        text=f"read {reading / 1e9:.0f}, copy {copying / 1e9:.0f}",
    )
    del big, other
    a, b = (torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda:0") for _ in range(2))
    emit("bf16 products", value=2 * 8192**3 / seconds_of(lambda: a @ b, 5) / 1e12, unit="TFLOP/s")


def transfers(_: str, __: int, small: bool) -> None:
    """What crossing costs: to be found in the cost model, too."""
    if place() == "cpu":
        emit("transfers", "skipped", text="no GPU")
        return
    import torch

    for name, n_bytes in (("20 KB", 20480), ("64 MB", 64 << 20)):
        there = torch.empty(n_bytes, dtype=torch.uint8, device="cuda:0")
        for kind, here in (("pageable", torch.empty(n_bytes, dtype=torch.uint8)),
                           ("pinned", torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True))):  # fmt: skip
            for way, target, source in (("to", there, here), ("from", here, there)):
                seconds = seconds_of(lambda t=target, s=source: t.copy_(s, non_blocking=True), 10)
                emit(f"{way} the GPU, {kind}, {name}", value=n_bytes / seconds / 1e9, unit="GB/s")
                if n_bytes < 1 << 20:
                    emit(f"{way} the GPU, {kind}, {name}: time", value=seconds * 1e6, unit="us")
    x = torch.zeros(1, device="cuda:0")
    emit("a launch", value=seconds_of(lambda: x.add_(1), 200) * 1e6, unit="us")
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(1000):
        torch.cuda.synchronize()
    emit("a synchronisation", value=(time.perf_counter() - begin) * 1e3, unit="us")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            x.add_(1)
    emit("a kernel in a graph of 100", value=seconds_of(graph.replay) * 1e4, unit="us")


def compare(what: str, shard: int, small: bool) -> None:
    """``kbench compare A torch`` on the cases that ``what`` names: pairs, cold caches, correctness first. Small: both
    sides open, and are checked, in this process."""
    name, _, pattern = what.partition(" ")
    if small:
        _compare_small(name, pattern)
        return
    command = [sys.executable, "-m", "kbench", "compare", name, "torch", "--suite", str(SUITE), "--filter", pattern]
    done = subprocess.run([*command, "--max-seconds", "4", "--json"], capture_output=True, text=True, cwd=ROOT)
    try:
        found = json.loads(done.stdout)["cases"]
    except ValueError:
        emit(f"{name}, torch {pattern}", "skipped" if done.returncode == 4 else "crashed", text=done.stderr[-300:])
        return
    for case in found:
        if case["status"] != "ok":
            emit(f"{name}, torch {case['case']}", case["status"], text=str(case["reason"])[:300])
            continue
        problem = Problem.parse(case["case"].replace(",threads=1)", ")"))
        seconds, tokens = case["a_seconds"], problem.integer("tokens")
        bars = {}
        if problem.op == "linear":
            bars = {"at_least": 1.0} if tokens > 16 else {"at_least": 3.3} if name == "marlin" else {}
        emit(
            f"{name}, torch {problem.key}", value=case["ratio"], unit="times as fast", **bars,
            text=f"{seconds * 1e6:.1f} and {case['b_seconds'] * 1e6:.1f} us, {case['interval']}", seconds=seconds,
            bytes=work(problem).bytes_touched, flops=work(problem).flops,
        )  # fmt: skip


def _compare_small(name: str, pattern: str) -> None:
    op = pattern.partition("(")[0]
    of_name = [(item, problem) for item, problem in cases(op) if item.name == name] if op in SHAPES else []
    if not of_name:
        emit(f"{name}, torch {op}", "unsupported", text=f"{name} takes no {op}")
    for _, problem in sorted(of_name, key=lambda pair: work(pair[1]).flops)[:1]:
        for side in (name, "torch"):
            request = {"problem": problem.key, "implementation": side, "threads": 1}
            opened = GpuSide()
            said = opened.open(request)
            if "failed" in said:
                result = {"wrong": "wrong", "Unsupported": "unsupported"}.get(said["failed"], "crashed")
                emit(f"{side} {problem.key}", result, text=str(said["found"]))
            else:
                opened.take({"seconds": 1e-9})
                emit(f"{side} {problem.key}", value=said["error_share"], unit="of its bound", at_most=1.0)


def hybrid(_: str, __: int, small: bool) -> None:
    """DeepSeek-V2-Lite's first layers with random weights: attention on the GPU, routed experts on the CPU."""
    from kbench.engine import load_model
    from kbench.kernels import best
    from kbench.model import build_tree, describe_gguf, load_descriptor, open_gguf, synthesize

    gpu = Device("cuda", 0)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        synthesize(_tiny(Path(folder)) if small else load_descriptor("deepseek-v2-lite-chat", None)[0], path,
                   n_layers=2 if small else 4)  # fmt: skip
        modules = [module.name for module in build_tree(describe_gguf(open_gguf(path))).walk()]
        router = Problem.make("linear", quant="Q4_K", n=256, k=256, tokens=1)
        on_cpu, on_gpu = best(router), "triton"
        cpu, there = Placement(CPU, on_cpu, CPU, on_cpu), Placement(gpu, on_gpu, gpu, on_gpu)
        options: dict[str, Any] = {"context": 64 if small else 512, "kv": "bf16"}
        if place() == "cpu":
            options["alias"] = {gpu: CPU}
        layouts = {
            "experts on the CPU": {name: cpu if name.endswith(".mlp.experts") else there for name in modules},
            "all on the GPU": dict.fromkeys(modules, there),
            "all on the CPU": dict.fromkeys(modules, cpu),
        }
        prompt, steps = list(range(5, 9 if small else 69)), 1 if small else 32
        logits: dict[str, Any] = {}
        parts = {}
        for name, layout in layouts.items():
            session = load_model(path, layout, **options)
            found = session.prefill(prompt)
            begin = time.perf_counter()
            for token in range(steps):
                found = session.decode(10 + token)
            seconds = (time.perf_counter() - begin) / steps
            logits[name] = np.asarray(found, dtype=np.float64)
            if place() != "cpu":
                emit(name, value=seconds * 1e3, unit="ms a token")
            if name == "experts on the CPU":
                parts = dict.fromkeys(("cpu", "gpu"), 0.0)
                for call, took in session.profile(50):
                    parts["cpu" if call.device == CPU else "gpu"] += took
                step = seconds
            del session
        right = logits["all on the CPU"]
        for name in ("experts on the CPU", "all on the GPU"):
            off = float(np.linalg.norm(logits[name] - right) / np.linalg.norm(right))
            # bfloat16 weights and a few layers of products, each with 2^-9; experts may be chosen otherwise.
            emit(f"{name}: logits", "ok" if off < 0.05 else "wrong", value=off, unit="of their norm", at_most=0.05)
        if place() != "cpu":
            longest = max(parts.values())
            emit("a step over its longer part", value=step / longest, unit="times", at_most=1.1,
                 text=f"CPU {parts['cpu'] * 1e3:.2f}, GPU {parts['gpu'] * 1e3:.2f} ms in turn")  # fmt: skip


def _tiny(folder: Path) -> Any:
    """DeepSeek-V2's kind of model, as small as its types allow."""
    from kbench.model import load_descriptor

    config = {
        "model_type": "deepseek_v2", "hidden_act": "silu", "hidden_size": 256, "intermediate_size": 256,
        "moe_intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "vocab_size": 320, "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "rope_theta": 10000.0,
        "q_lora_rank": None, "kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "v_head_dim": 128,
        "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "n_group": 1, "topk_group": 1, "topk_method": "greedy", "scoring_func": "softmax",
        "norm_topk_prob": False, "routed_scaling_factor": 1.0, "tie_word_embeddings": False,
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return load_descriptor(str(path), None)[0]


KINDS: dict[str, Callable[[str, int, bool], None]] = {
    "machine": machine, "correct": correct, "compare": compare, "transfers": transfers, "hybrid": hybrid,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("step", help="kind, then what of it: 'correct linear 2'")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    kind, _, rest = options.step.partition(" ")
    what, shard = rest, 0
    if kind == "correct":
        what, _, number = rest.partition(" ")
        shard = int(number)
    KINDS[kind](what, shard, options.small)
    return 0


if __name__ == "__main__":
    sys.exit(main())
