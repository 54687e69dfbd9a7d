"""What a KTransformers rule file runs into there, though kbench runs it: told, so that the file works in both."""

from __future__ import annotations

from collections.abc import Sequence

from .finding import INFO, WARNING, Finding
from .flow import PlacedModule
from .schema import Rule, RuleSet

# Its GPU side dequantises these; the first two fall back to numpy or fail there.
_GPU_DEQUANTISES = ("F32", "F16", "BF16", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS")


def peer_findings(rules: RuleSet, placed: Sequence[PlacedModule]) -> list[Finding]:
    """Findings that hold for KTransformers only."""
    return [*_embedding(rules, placed), *_quants(rules, placed), *_backends(rules, placed), *_options(rules, placed)]


def _embedding(rules: RuleSet, placed: Sequence[PlacedModule]) -> list[Finding]:
    for module, rule, placement in placed:
        if "Embedding" in module.classes and placement.generate_device.kind != "cpu":
            found = f"{module.name} on {placement.generate_device}: KTransformers looks tokens up on the CPU"
            todo = "give it a rule with class default and generate_device: cpu, prefill_device: cpu"
            return [_finding("embedding-on-gpu", rules, rule, found, todo)]
    return []


def _finding(code: str, rules: RuleSet, rule: Rule | None, found: str, todo: str) -> Finding:
    if rule is None:
        return Finding(code, WARNING, rules.path, 1, "rules", found, "", todo)
    return rules.finding(code, WARNING, rule, "replace.kwargs.generate_device", found, "", todo)


def _quants(rules: RuleSet, placed: Sequence[PlacedModule]) -> list[Finding]:
    found: dict[tuple[int, str], list[tuple[Rule | None, str]]] = {}
    for module, rule, placement in placed:
        if placement.generate_device.kind == "cpu":
            continue
        for tensor in module.tensors:
            if tensor.quant not in _GPU_DEQUANTISES:
                found.setdefault((rule.number if rule else 0, tensor.quant), []).append((rule, tensor.name))
    findings = []
    for (_, quant), tensors in found.items():
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        text = f"KTransformers does not dequantise {quant} on a GPU ({tensors[0][1]}{more})"
        findings.append(_finding("peer-quant", rules, tensors[0][0], text, "another quant type, or the CPU"))
    return findings


def _backends(rules: RuleSet, placed: Sequence[PlacedModule]) -> list[Finding]:
    findings, seen = [], set()
    for module, rule, _ in placed:
        backend = (rule.kwargs or {}).get("backend") if rule else None
        if rule is None or rule.number in seen or backend not in ("AMXBF16", "AMXInt8"):
            continue
        other = next((tensor for tensor in module.tensors if tensor.quant != "BF16"), None)
        if other is not None:
            seen.add(rule.number)
            found = f"backend {backend} needs BF16 experts in KTransformers, {other.name} is {other.quant}"
            findings.append(
                rules.finding("peer-backend", WARNING, rule, "replace.kwargs.backend", found, "", "backend: llamafile")
            )
    return findings


def _options(rules: RuleSet, placed: Sequence[PlacedModule]) -> list[Finding]:
    findings = []
    gpus = {placement.generate_device for *_, placement in placed if placement.generate_device.kind == "cuda"}
    for rule in rules.rules:
        kwargs = rule.kwargs or {}
        for key in ("per_layer_prefill_intput_threshold", "per_layer_prefill_input_threshold"):
            if kwargs.get(key) and len(gpus) > 1:
                found = f"layer-wise prefill over {len(gpus)} GPUs: KTransformers puts every layer on cuda:0 for it"
                todo = f"set {key} to 0"
                findings.append(rules.finding("peer-prefill", WARNING, rule, f"replace.kwargs.{key}", found, "", todo))
        if kwargs.get("generate_op") in ("KExpertsMarlin", "KExpertsTorch"):
            found = f"{kwargs['generate_op']} cannot be captured in a CUDA graph"
            todo = "run KTransformers with --use_cuda_graph False"
            part = "replace.kwargs.generate_op"
            findings.append(rules.finding("peer-graph", INFO, rule, part, found, "", todo))
    return findings
