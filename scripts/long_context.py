"""A whole context through the engine: tokens/s at depth, and the most memory that was resident.

    python scripts/long_context.py dense-7b.Q4_0.gguf --context 8192

Random tokens are prefilled until 64 slots of the context are left, and those are decoded. The peak is the kernel's
count of this process (``VmHWM``), pages of the mapped file included.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np

from kbench.core import format_bytes
from kbench.engine import load_model

DECODED = 64


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts KiB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    session = load_model(options.model, context=options.context, threads=options.threads)
    print(f"loaded, peak {format_bytes(peak_bytes())}", flush=True)
    ids = np.random.default_rng(0).integers(0, session.descriptor.vocab, options.context - DECODED)
    begin = time.perf_counter()
    for start in range(0, len(ids), 1024):
        session.prefill(ids[start : start + 1024])
        print(f"{session.position} tokens after {time.perf_counter() - begin:.0f} s", flush=True)
    begin = time.perf_counter()
    for token in ids[:DECODED]:
        session.decode(int(token))
    rate = DECODED / (time.perf_counter() - begin)
    print(f"{rate:.2f} tokens/s at a depth of {session.position}, peak {format_bytes(peak_bytes())}")


if __name__ == "__main__":
    main()
