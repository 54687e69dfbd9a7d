"""The model of a list of claims in the quantizations that its checks need: given, found beside it, or made from it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbench.core import UserError, format_bytes
from kbench.model import REQUANTIZED, GgufFile, describe_gguf, model_stem, open_gguf, requantize

# Of a model that is written anew for a check: a small one.
MAX_MADE_BYTES = 2 << 30


def cache_folder() -> Path:
    """Where files that are made go: ``$XDG_CACHE_HOME/kbench``, else ``~/.cache/kbench``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbench"


@dataclass
class ClaimFiles:
    """Attributes:
    model: the file that ``--model`` names.
    given: others by quantization: ``{"F16": path}``.
    progress: told (weights done, weights, what) while a file is made.
    made: what was made from ``model``, for readers: a quantization of a quantized file is further from the original.
    """

    model: Path
    given: Mapping[str, Path] = field(default_factory=dict)
    progress: Callable[[int, int, str], None] | None = None
    made: list[str] = field(default_factory=list)

    def path(self, quant: str) -> Path:
        """The model in ``quant``.

        Raises:
            UserError: it is not there and cannot be made from ``model``.
        """
        if quant in self.given:
            return self.given[quant]
        source = open_gguf(self.model)
        if describe_gguf(source).quant == quant:
            return self.model
        # SmolLM2-135M.Q4_1.gguf has SmolLM2-135M.Q8_0.gguf beside it.
        beside = self.model.with_name(f"{model_stem(self.model).rsplit('.', 1)[0]}.{quant}.gguf")
        return beside if beside.is_file() else self._make(source, quant)

    def _make(self, source: GgufFile, quant: str) -> Path:
        todo = f"give it: --with {quant}=FILE"
        if source.tensor_bytes > MAX_MADE_BYTES:
            raise UserError(f"{self.model.name} in {quant} is not here, and too large to make", todo=todo)
        if quant not in REQUANTIZED:
            raise UserError(f"{self.model.name} in {quant} is not here", accepted=", ".join(REQUANTIZED), todo=todo)
        folder = cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
        # The source's size tells its versions apart.
        stem = re.sub(r"[^\w.+-]", "_", model_stem(self.model))
        path = folder / f"{stem}.{source.file_bytes}.{quant}.gguf"
        if not path.is_file():

            def tell(done: int, whole: int) -> None:
                if self.progress is not None:
                    self.progress(done, whole, f"writing {quant}")

            requantize(source, quant, path, progress=tell)
        size, quant_of = format_bytes(path.stat().st_size), describe_gguf(source).quant
        text = f"{quant} is made from {self.model.name} ({quant_of}), {size}"
        if text not in self.made:
            self.made.append(text)
        return path
