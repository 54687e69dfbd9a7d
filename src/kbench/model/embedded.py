"""Models known by name: descriptors in YAML inside the package, for planning without a download.

A file of ``descriptors/`` is a mapping with exactly the keys of ``_FIELDS`` and ``_LATENT`` or ``_HEADS`` (and of
``_MLA``, ``_MOE``, ``_ROPE`` below ``mla``, ``moe``, ``rope``), and perhaps some of ``_OPTIONAL``. Its tensors follow
from the shapes, their types from the quantizer's rules.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kbench.core import Attribute, Lines, UserError, did_you_mean, load_yaml

from .architectures import ARCHITECTURES
from .descriptor import Delta, Mla, ModelDescriptor, Moe
from .quantizer import quantize_table
from .tensor_table import draft_table, tensor_table

SCHEMA_VERSION = 1
DEFAULT_QUANT = "Q4_K_M"
_FOLDER = Path(__file__).parent / "descriptors"

_FIELDS: dict[str, type] = {
    "kbench_model": int,
    "name": str,
    "aliases": list,
    "architecture": str,
    "n_layers": int,
    "d": int,
    "vocab": int,
    "heads": int,
    "ffn": int,
    "rms_eps": float,
    "context_length": int,
    "moe": Lines,
    "rope": Lines,
}
# How it attends: with a shared latent, or with heads of keys and values.
_LATENT: dict[str, type] = {"mla": Lines}
_HEADS: dict[str, type] = {"kv_heads": int, "head_dim": int}
# What the architecture leaves open or most models do not have; ``window``: see ``ModelDescriptor``.
_OPTIONAL: dict[str, type] = {
    "qk_norm": bool,
    "attention_bias": bool,
    "rotary": int,
    "draft_layers": int,
    "delta": Lines,
    "window": int,
}
_DELTA: dict[str, type] = {
    "key_heads": int, "key_dim": int, "value_heads": int, "value_dim": int, "conv": int, "interval": int
}  # fmt: skip
_MLA: dict[str, type] = {"q_lora": int, "kv_lora": int, "rope": int, "nope": int, "v": int}
_MOE: dict[str, type] = {
    "experts": int,
    "top_k": int,
    "n": int,
    "shared": int,
    "first_dense": int,
    "scoring": str,
    "n_group": int,
    "topk_group": int,
    "norm_topk_prob": bool,
    "routed_scaling": float,
}
_SHARED: dict[str, type] = {"shared_n": int}
_ROPE: dict[str, type] = {
    "freq_base": float,
    "scaling": str,
    "factor": float,
    "original_context": int,
    "beta_fast": float,
    "beta_slow": float,
    "mscale": float,
    "mscale_all_dim": float,
}


_NOTHING: Mapping[str, type] = {}


def embedded_names() -> tuple[str, ...]:
    """Canonical names of the embedded models."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def embedded(name: str, quant: str = DEFAULT_QUANT) -> ModelDescriptor:
    """The model called ``name`` (any spelling of case, ``_`` for ``-``, with or without its organisation).

    Raises:
        UserError: no such model.
        Unsupported: no such quantization.
    """
    stem = _spellings().get(_normal(name))
    if stem is None:
        raise UserError(
            f"no embedded model {name!r}",
            accepted=", ".join(embedded_names()),
            todo=suggest_embedded(name),
        )
    draft = read_descriptor(_FOLDER / f"{stem}.yaml")
    return with_quant(draft, quant)


def with_quant(descriptor: ModelDescriptor, quant: str, *, split_kv_b: bool = False) -> ModelDescriptor:
    """``descriptor`` with the tensors of a file of quantization ``quant``; ``split_kv_b``: as files have been since
    April 2025 (see ``tensor_table``)."""
    gqa = 1 if descriptor.mla is not None else descriptor.heads // descriptor.kv_heads
    specs = [spec for spec in tensor_table(descriptor, split_kv_b=split_kv_b) if not spec.optional]
    drafting = list(draft_table(descriptor))
    label = quant.upper()
    experts = descriptor.moe.experts if descriptor.moe is not None else 0
    n_layers = descriptor.n_layers + descriptor.draft_layers
    kept = ARCHITECTURES[descriptor.architecture].expert_type
    tensors = quantize_table([*specs, *drafting], label, n_layers=n_layers, gqa=gqa, experts=experts, expert_type=kept)
    own, draft = tensors[: len(specs)], tensors[len(specs) :]
    return dataclasses.replace(descriptor, quant=label, tensors=own, draft=draft)


def suggest_embedded(name: str) -> str:
    """``did you mean X?`` for a name that is none, or an empty string."""
    return did_you_mean(_normal(name), _spellings())


def is_embedded(name: str) -> bool:
    return _normal(name) in _spellings()


def _normal(name: str) -> str:
    return re.sub(r"[_\s]+", "-", name.strip().rsplit("/", 1)[-1].lower())


@cache
def _spellings() -> dict[str, str]:
    found = {}
    for stem in embedded_names():
        document = load_yaml(_FOLDER / f"{stem}.yaml")
        for spelling in (stem, document["name"], *document["aliases"]):
            found[_normal(spelling)] = stem
    return found


@cache
def read_descriptor(path: Path) -> ModelDescriptor:
    """The descriptor in a YAML file, without tensors.

    Raises:
        UserError: with file and line, for whatever is not as the schema says.
    """
    document = load_yaml(path)
    latent = isinstance(document, Lines) and "kv_heads" not in document
    document = _checked(document, _FIELDS | (_LATENT if latent else _HEADS), path, "the file", _OPTIONAL)
    if document["kbench_model"] != SCHEMA_VERSION:
        raise UserError(f"kbench_model {document['kbench_model']}", where=str(path), accepted=str(SCHEMA_VERSION))
    if document["architecture"] not in ARCHITECTURES:
        raise UserError(
            f"architecture {document['architecture']!r}",
            where=f"{path}:{document.line_of('architecture')}",
            accepted=", ".join(ARCHITECTURES),
        )
    entry = ARCHITECTURES[document["architecture"]]
    mla = Mla(**_checked(document["mla"], _MLA, path, "mla")) if latent else None
    delta = Delta(**_checked(document["delta"], _DELTA, path, "delta")) if "delta" in document else None
    head_dim = document["head_dim"] if mla is None else mla.nope + mla.rope
    rope: dict[str, Attribute] = entry.rope(head_dim)
    scalars = ("name", "architecture", "n_layers", "d", "vocab", "heads", "ffn", "rms_eps", "context_length")
    return ModelDescriptor(
        **{key: document[key] for key in scalars},
        quant="",
        kv_heads=1 if latent else document["kv_heads"],
        head_dim=head_dim,
        qk_norm=document.get("qk_norm", bool(entry.qk_norm)),
        attention_bias=document.get("attention_bias", bool(entry.attention_bias)),
        rotary=document.get("rotary", 0),
        draft_layers=document.get("draft_layers", 0),
        window=document.get("window", 0),
        full_every=entry.full_every,
        rope=rope | dict(_checked(document["rope"], _ROPE, path, "rope")),
        mla=mla,
        delta=delta,
        moe=Moe(**_checked(document["moe"], _MOE, path, "moe", _SHARED), shared_gate=entry.shared_gate),
    )


def _checked(
    document: Any, fields: dict[str, type], path: Path, what: str, optional: Mapping[str, type] = _NOTHING
) -> Lines:
    known = {**fields, **optional}
    if not isinstance(document, Lines):
        raise UserError(f"{what} is no mapping", where=str(path), accepted=", ".join(known))
    for key in document:
        if key not in known:
            raise UserError(
                f"unknown key {key!r} in {what}",
                where=f"{path}:{document.line_of(key)}",
                accepted=", ".join(known),
                todo=did_you_mean(str(key), known),
            )
    for key, kind in known.items():
        if key in optional and key not in document:
            continue
        if key not in document:
            raise UserError(f"{what} lacks {key!r}", where=f"{path}:{document.line}", accepted=", ".join(fields))
        value = document[key]
        accepted = (int, float) if kind is float else (kind,)
        right = isinstance(value, accepted) and isinstance(value, bool) == (kind is bool)
        if right and kind in (int, float):
            right = math.isfinite(value) and 0 <= value < 1 << 31
        if not right:
            raise UserError(
                f"{key} is {value!r}", where=f"{path}:{document.line_of(key)}", accepted=f"a {kind.__name__}"
            )
    return document
