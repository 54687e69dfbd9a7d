"""A file's tensors, held against those that its model needs."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kbench.core import CorruptFile, TensorInfo, Unsupported, UserError, quant

from .descriptor import ModelDescriptor
from .gguf_file import GgufFile
from .tensor_table import TensorSpec, tensor_table

# Of wrong tensors that are told; a file's word for its number of layers is not believed any further.
MOST_FAULTS = 1000
# Of them, those that the error of a load names.
_NAMED = 3

_BLOCK = re.compile(r"blk\.(\d{1,6})\.")


def checked_tensors(
    draft: ModelDescriptor, gguf: GgufFile, n_drafting: int, faults: list[UserError] | None
) -> tuple[TensorInfo, ...]:
    """The tensors that ``draft`` wants, in the model's order, each with the shape that it wants.

    Args:
        n_drafting: layers behind the last one, whose tensors are left out.
        faults: what is wrong goes there, tensor by tensor, and what is not as it should be is taken to be; None: it is
            raised.

    Raises:
        CorruptFile, Unsupported: what is wrong, or too much of it.
    """
    present = {name: tensor.info for name, tensor in gguf.tensors.items()}
    drafting = range(draft.n_layers, draft.n_layers + n_drafting)
    present = {n: info for n, info in present.items() if not (m := _BLOCK.match(n)) or int(m[1]) not in drafting}
    last = max((int(m[1]) for m in map(_BLOCK.match, present) if m), default=-1)
    if last + 1 > draft.n_layers or (faults is None and last + 1 != draft.n_layers):
        raise CorruptFile(
            f"block_count is {draft.n_layers}, the tensors have blocks 0 to {last}",
            where=f"{gguf.path}: {gguf.architecture}.block_count",
        )
    split = {"split_kv_b": "blk.0.attn_k_b.weight" in present, "split_qkvz": "blk.0.attn_qkv.weight" in present}
    types = {_BLOCK.sub("", name): info.quant for name, info in present.items()}
    found: list[TensorInfo] = []
    wrong: list[UserError] = []
    for spec in tensor_table(draft, **split):
        info = present.pop(spec.name, None)
        if info is None and spec.optional:
            continue
        if info is not None and info.shape == spec.shape:
            found.append(info)
            continue
        where = f"{gguf.path}: {spec.name}"
        if info is None:
            wrong.append(CorruptFile("this tensor is missing", where=where))
        else:
            text = f"its shape is {list(info.shape)}, the metadata make it {list(spec.shape)}"
            wrong.append(CorruptFile(text, where=where))
        if len(wrong) == MOST_FAULTS:
            raise _together(wrong)
        found.append(_as_it_should_be(spec, types))
    if present:
        name = next(iter(present))
        wrong.append(
            Unsupported(
                f"{len(present)} tensors that {draft.architecture} does not know, such as {name}",
                where=f"{gguf.path}: {name}",
                todo="the model would compute something else without them",
            )
        )
    if wrong and faults is None:
        raise _together(wrong)
    if faults is not None:
        faults += wrong
    return tuple(found)


def _together(wrong: list[UserError]) -> UserError:
    """The first, and how many more there are."""
    first, others = wrong[0], [error.where.rpartition(": ")[2] for error in wrong[1:]]
    if not others:
        return first
    count = f"{len(others)} or more" if len(wrong) == MOST_FAULTS else str(len(others))
    text = f"{first.found}; wrong, too: {count} others, such as {', '.join(others[:_NAMED])}"
    return type(first)(text, where=first.where, accepted=first.accepted, todo=first.todo)


def _as_it_should_be(spec: TensorSpec, types: Mapping[str, str]) -> TensorInfo:
    """Of the type that other layers have it in, where rows of that type can be so long."""
    name = types.get(_BLOCK.sub("", spec.name), "F32" if len(spec.shape) == 1 else "F16")
    if spec.shape[0] % quant(name).block_elements:
        name = "F16"
    return TensorInfo(spec.name, spec.shape, name, spec.kind)
