"""Rules under which a long prompt is prefilled layer by layer."""

from __future__ import annotations

from pathlib import Path

from kbench.rules import RuleSet, load_rules


def layerwise_rules(folder: Path, threshold: int, rest: str) -> RuleSet:
    """Prompts of more than ``threshold`` tokens are long; ``rest``: the other rules, as YAML."""
    file = folder / f"{threshold}.yaml"
    file.write_text(
        "kbench: 1\nrules:\n"
        "- match: {name: '^model$'}\n"
        f"  replace: {{class: Model, kwargs: {{per_layer_prefill_intput_threshold: {threshold}}}}}\n{rest}"
    )
    return load_rules(file)
