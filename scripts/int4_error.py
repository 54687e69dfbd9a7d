"""What rounding to int4 takes away from a model's matrices, before anybody places them on `marlin`.

    python scripts/int4_error.py model.gguf [--group 64] [--like blk.0]

Prints a line for each tensor (root mean square of the errors over that of the weights; the largest error over the
largest weight), and their range. Needs no GPU.
"""

from __future__ import annotations

import argparse

from kbench.kernels.triton.int4_rows import GROUPS, int4_matrix
from kbench.model import open_gguf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--group", type=int, choices=GROUPS, default=128)
    parser.add_argument("--like", default="", help="only tensors whose name contains this")
    asked = parser.parse_args()
    found = []
    for tensor in open_gguf(asked.model).tensors.values():
        info = tensor.info
        if len(info.shape) < 2 or asked.like not in info.name or "embd" in info.name:
            continue
        error = int4_matrix(tensor.raw, info.quant, info.shape[0], "cpu", asked.group, info.name).rounding
        print(f"{error.tensor:<40} {error.quant:<6} {error.relative_rms:7.2%} {error.largest:7.1%}", flush=True)
        found.append(error.relative_rms)
    if found:
        found.sort()
        middle = found[len(found) // 2]
        print(f"{len(found)} tensors: {found[0]:.2%} to {found[-1]:.2%}, half of them up to {middle:.2%}")


if __name__ == "__main__":
    main()
