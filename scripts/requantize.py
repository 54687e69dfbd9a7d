"""Writes a GGUF file in other quantizations, with llama.cpp's own quantizer.

    python scripts/requantize.py SmolLM2-135M-Instruct.Q4_1.gguf Q4_0 Q8_0 Q4_K_M -o models

Needs the package llama-cpp-python. Requantising a quantised file costs quality; for timing kernels it does not matter.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kbench.model import first_part, model_stem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("quants", nargs="+", metavar="QUANT")
    parser.add_argument("-o", "--output", type=Path, default=Path())
    options = parser.parse_args()
    import llama_cpp as api
    from gguf.constants import LlamaFileType

    # SmolLM2-135M.Q4_1 becomes SmolLM2-135M.Q4_0.
    stem = model_stem(options.model).rsplit(".", 1)[0]
    for quant in options.quants:
        how = api.llama_model_quantize_default_params()
        how.ftype, how.allow_requantize = int(LlamaFileType[f"MOSTLY_{quant}"]), True
        path = options.output / f"{stem}.{quant}.gguf"
        if api.llama_model_quantize(str(first_part(options.model)).encode(), str(path).encode(), how):
            sys.exit(f"{path} was not written")
        print(path)


if __name__ == "__main__":
    main()
