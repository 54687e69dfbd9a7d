"""Exports to llama.cpp and ik_llama.cpp: every tensor lands where the rules say, caches beside their attention."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from llama_placement import LlamaPlacement

from kbench.core import CPU, Device, Module, Placement
from kbench.model import build_tree, embedded
from kbench.rules import Serving, assign, export, load_rules

ROOT = Path(__file__).parents[2] / "rules"
FIXTURES = Path(__file__).parent / "fixtures"
GPUS = tuple(Device("cuda", index) for index in range(3))
MODELS = (
    "deepseek-v2-chat", "deepseek-v2-lite-chat", "qwen3-30b-a3b", "gpt-oss-20b", "glm-4.5-air", "qwen3-next-80b-a3b",
)  # fmt: skip

Choose = Callable[[int | None, str], Device]


@cache
def tree_of(model: str) -> Module:
    return build_tree(embedded(model))


def on(device: Device, threads: int | None = None) -> Placement:
    return Placement(device, prefill_device=device, threads=threads)


def placed_by(tree: Module, choose: Choose) -> dict[str, Placement]:
    """``choose`` gets the layer and the rest of a module's name."""
    found = {}
    for module in tree.walk():
        parts = module.name.split(".")
        layer = int(parts[2]) if module.name.startswith("model.layers.") else None
        found[module.name] = on(choose(layer, ".".join(parts[3:]) if layer is not None else module.name))
    return found


def experts_away(borders: tuple[int, ...], gpus: tuple[Device, ...], prefix: int = 0) -> Choose:
    """Layers in runs over ``gpus`` that end at ``borders``, the first ``prefix`` and all experts on the CPU."""

    def choose(layer: int | None, part: str) -> Device:
        if layer is None:
            return CPU if "embed" in part else gpus[-1]
        if layer < prefix or part.endswith("experts"):
            return CPU
        return next(gpu for gpu, border in zip(gpus, (*borders, 1 << 30), strict=True) if layer < border)

    return choose


def scattered(seed: int) -> Choose:
    """Anything anywhere."""
    rng = random.Random(seed)
    return lambda layer, part: rng.choice((CPU, *GPUS[:2]))


PLACEMENTS = {
    "one GPU, experts away": experts_away((), GPUS[:1]),
    "the second GPU": experts_away((), GPUS[1:2]),
    "two uneven GPUs": experts_away((7,), GPUS[:2]),
    "three GPUs, the first layers on the CPU": experts_away((9, 10), GPUS, 4),
    "everything on one": lambda layer, part: GPUS[0],
    "everything but the head": lambda layer, part: CPU if part == "lm_head" else GPUS[0],
    "the head alone": lambda layer, part: GPUS[0] if part == "lm_head" else CPU,
    "every other layer": lambda layer, part: GPUS[0] if layer is not None and layer % 2 else CPU,
    "scattered": scattered(7),
}


def buffer(device: Device) -> str:
    return "CPU" if device == CPU else f"CUDA{device.index}"


def wrong_caches(tree: Module, placed: dict[str, Placement], there: LlamaPlacement) -> list[int]:
    """Layers whose cache does not lie with their attention."""
    found = []
    for module in tree.walk():
        parts = module.name.split(".")
        if parts[-1] in ("self_attn", "linear_attn"):
            layer = int(parts[2])
            if there.layer(layer) != buffer(placed[module.name].generate_device):
                found.append(layer)
    return found


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_tensor_lies_where_the_rules_say(model: str, name: str) -> None:
    tree = tree_of(model)
    placed = placed_by(tree, PLACEMENTS[name])
    descriptor = embedded(model)
    found = export(placed, tree, "llama.cpp", Serving(draft_layers=descriptor.draft_layers))
    there = LlamaPlacement(found.arguments, descriptor.n_layers + descriptor.draft_layers)
    for module in tree.walk():
        for tensor in module.tensors:
            if tensor.name not in ("token_embd.weight", "rope_freqs.weight"):
                assert there.tensor(tensor.name) == buffer(placed[module.name].generate_device), tensor.name
    assert there.tensor("token_embd.weight") == "CPU"
    # An override for a tensor that would lie there anyway says nothing; one that finds no tensor is a mistake.
    names = [tensor.name for module in tree.walk() for tensor in module.tensors]
    for pattern, _ in there.overrides:
        assert any(pattern.search(tensor) for tensor in names), pattern.pattern
    misplaced = wrong_caches(tree, placed, there)
    said = [note for note in found.notes if note.startswith("the cache of layers")]
    assert bool(misplaced) == bool(said)
    if name not in ("every other layer", "scattered"):
        assert not misplaced and len(there.overrides) <= 4


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_ik_llama_cpp_gets_a_word_for_all_that_it_might_put_elsewhere(model: str, name: str) -> None:
    """There the output is offloaded last, and ``-ts`` weighs bytes: with two GPUs only overrides are sure."""
    tree = tree_of(model)
    placed = placed_by(tree, PLACEMENTS[name])
    n = embedded(model).n_layers + embedded(model).draft_layers
    found = export(placed, tree, "ik_llama.cpp", Serving(draft_layers=embedded(model).draft_layers))
    there = LlamaPlacement(found.arguments, n)
    assert there.n_gpu_layers > 0, "without any layer it opens no GPU"
    if name == "the head alone":
        last = embedded(model).n_layers - 1
        said = f"the cache of layers {last} lies on CUDA0, not on CPU"
        assert any(note.startswith(said) for note in found.notes) == (embedded(model).draft_layers == 0)
    for module in tree.walk():
        for tensor in module.tensors:
            wanted = buffer(placed[module.name].generate_device)
            if tensor.name in ("token_embd.weight", "rope_freqs.weight"):
                continue
            override = next((to for pattern, to in there.overrides if pattern.search(tensor.name)), None)
            if override is not None:
                assert override == wanted, tensor.name
                continue
            layer = int(tensor.name.split(".")[1]) if tensor.name.startswith("blk.") else None
            first = n - there.n_gpu_layers
            offloaded = layer >= first if layer is not None else there.n_gpu_layers > n
            assert wanted == "CPU" if not offloaded else wanted == there.devices[0] and len(there.devices) == 1


def test_a_tied_head_follows_the_rules_as_far_as_it_can() -> None:
    tree = tree_of("deepseek-v2-lite-chat")
    (model, head) = tree.children
    tied = Module(tree.name, tree.classes, tree.tensors, (model, Module(head.name, head.classes)))
    n = embedded("deepseek-v2-lite-chat").n_layers

    def told(head_on: Device, *gpus: Device) -> tuple[str, tuple[str, ...]]:
        borders = (13,) if len(gpus) > 1 else ()
        rest = experts_away(borders, gpus)
        placed = placed_by(tied, lambda layer, part: head_on if part == "lm_head" else rest(layer, part))
        found = export(placed, tied, "llama.cpp")
        there = LlamaPlacement(found.arguments, n)
        assert there.tensor("token_embd.weight") == "CPU"
        return there.tensor("token_embd.weight", head=True), found.notes

    assert told(GPUS[0], GPUS[0])[0] == "CUDA0" and told(CPU, GPUS[0])[0] == "CPU"
    where, notes = told(GPUS[0], GPUS[0], GPUS[1])
    assert where == "CUDA1" and any("runs on CUDA1, not on cuda:0" in note for note in notes)


def test_the_known_command_for_deepseek_v2() -> None:
    tree = tree_of("deepseek-v2-chat")
    placed = assign(load_rules(FIXTURES / "deepseek_v2_one_gpu.yaml"), tree)
    experts = r"^blk\.([1-9]|[1-5][0-9])\.(ffn_gate_exps\.weight|ffn_up_exps\.weight|ffn_down_exps\.weight)$"
    serving = Serving("v2.gguf", context=8192, sequences=2, kv="q8_0")
    one = export(placed, tree, "llama.cpp", serving)
    assert one.program == ("llama-server",)
    assert list(one.arguments) == [
        "-m", "v2.gguf", "-ngl", "61", "-dev", "CUDA0", "-ot", f"{experts}=CPU",
        "--no-op-offload", "--no-host", "-fit", "off", "-c", "16384", "-np", "2", "-b", "2048", "-ub", "256",
        "-ctk", "q8_0", "-ctv", "q8_0", "-fa", "on",
    ]  # fmt: skip
    ik = export(placed, tree, "ik_llama.cpp", serving)
    for pair in (("-mla", "3"), ("-amb", "512"), ("-op", "-1,0"), ("-ot", f"{experts}=CPU")):
        assert pair in itertools.pairwise(ik.arguments)
    assert "-fmoe" not in ik.arguments and "-rtr" not in ik.arguments  # the first is its default, and gone
    two = export(assign(load_rules(ROOT / "deepseek-v2-chat.2gpu.yaml"), tree), tree, "llama.cpp")
    assert ("-ts", "30,31") in itertools.pairwise(two.arguments)
    nothing = export({}, tree, "llama.cpp").arguments
    assert nothing[2:6] == ("-ngl", "0", "-dev", "none") and "-ot" not in nothing
    assert "-rtr" in export({}, tree, "ik_llama.cpp").arguments


def test_what_cannot_be_said_is_said_so() -> None:
    tree = tree_of("deepseek-v2-lite-chat")
    placed = placed_by(tree, experts_away((), GPUS[:1]))
    quiet = export(placed, tree, "llama.cpp")
    assert quiet.notes == ("CUDA0 is cuda:0 in a build for CUDA; another build names it otherwise (ROCm0, Vulkan0)",)
    for module in tree.walk():
        if module.name.endswith(".experts"):
            placed[module.name] = Placement(CPU, "cpu.avx2", GPUS[0], "triton", None, 8, {"activation_planes": 1})
    placed["model.layers.3.mlp.experts"] = Placement(CPU, prefill_device=CPU, generate_threads=4, prefill_threads=2)
    placed["model.layers.0.self_attn"] = Placement(GPUS[0], prefill_device=GPUS[0], absorb_for_prefill=True)
    placed["model.embed_tokens"] = on(GPUS[0])
    found = export(placed, tree, "llama.cpp")
    told = "\n".join(found.notes)
    assert "--no-op-offload" not in found.arguments
    assert {("-t", "8"), ("-tb", "2")} <= set(itertools.pairwise(found.arguments))
    for words in (
        "tokens are looked up on the CPU, not on CUDA0",
        "for prompts from 32 tokens on, llama.cpp copies what lies in main memory to a GPU",
        "prefill of model.layers.3.mlp.experts runs on a GPU, not on cpu as the rules say",
        "absorb_for_prefill of model.layers.0.self_attn is llama.cpp's own choice",
        "one thread count for all of decode, here 8; the rules say 4 for model.layers.3.mlp.experts",
        "kernels of its own: cpu.avx2, triton of the rules is not said",
        "kernel parameters of model.layers.1-2,4-26.mlp.experts are kbench's alone",
    ):
        assert words in told, words
    assert ("-mla", "1") in zip(*(export(placed, tree, "ik_llama.cpp").arguments[i:] for i in (0, 1)), strict=False)


# std::regex_search itself: names from stdin, each answered by the number of the first pattern that is found in it.
_SEARCH = r"""
#include <iostream>
#include <regex>
#include <string>
#include <vector>
int main(int n, char ** patterns) {
    std::vector<std::regex> compiled;
    for (int i = 1; i < n; i++) compiled.emplace_back(patterns[i]);
    for (std::string name; std::getline(std::cin, name);) {
        size_t i = 0;
        while (i < compiled.size() && !std::regex_search(name, compiled[i])) i++;
        std::cout << i << "\n";
    }
}
"""


def test_patterns_find_the_same_with_cpps_own_regular_expressions(tmp_path: Path) -> None:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        assert not os.environ.get("KBENCH_REQUIRE"), "no C++ compiler"
        pytest.skip("no C++ compiler")
    (tmp_path / "search.cpp").write_text(_SEARCH)
    subprocess.run([compiler, "-std=c++17", "-O0", "-o", tmp_path / "search", tmp_path / "search.cpp"], check=True)
    for model in ("deepseek-v2-chat", "gpt-oss-20b"):
        tree = tree_of(model)
        names = [tensor.name for module in tree.walk() for tensor in module.tensors]
        near = (
            [name.replace("blk.1", "blk.11") for name in names]
            + [f"x{name}" for name in names]
            + [f"{n}x" for n in names]
        )
        for choose in (PLACEMENTS["three GPUs, the first layers on the CPU"], PLACEMENTS["scattered"]):
            there = LlamaPlacement(
                export(placed_by(tree, choose), tree, "llama.cpp").arguments, embedded(model).n_layers
            )
            patterns = [pattern.pattern for pattern, _ in there.overrides]
            text = "\n".join([*names, *near])
            done = subprocess.run(
                [tmp_path / "search", *patterns], input=text, capture_output=True, text=True, check=True
            )
            expected = [
                next((i for i, (pattern, _) in enumerate(there.overrides) if pattern.search(name)), len(patterns))
                for name in text.split("\n")
            ]
            assert [int(line) for line in done.stdout.split()] == expected
