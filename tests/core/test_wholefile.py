"""A file is written whole or stays as it was, and nothing else is left beside it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kbench.core import UserError, write_whole


def test_it_makes_folders_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two" and [entry.name for entry in path.parent.iterdir()] == ["file"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444  # for everybody, unlike what tempfile makes


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
def test_an_error_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, step: str
) -> None:
    def fails(*_: Any) -> None:
        raise error

    path = tmp_path / "file"
    write_whole(path, b"old")
    monkeypatch.setattr(step, fails)
    with pytest.raises((UserError, KeyboardInterrupt)) as caught:
        write_whole(path, b"new")
    if isinstance(error, OSError):
        assert isinstance(caught.value, UserError) and "cannot be written: No space left" in caught.value.message
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_kill_leaves_no_half_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    # Killed when all is written but nothing is on the disk for sure.
    code = (
        "import os, signal, sys; from pathlib import Path; from kbench.core import write_whole\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "write_whole(Path(sys.argv[1]), b'new')"
    )
    ended = subprocess.run([sys.executable, "-c", code, str(path)], env={**os.environ}, check=False)
    assert ended.returncode == -9
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("place", [".", "file/below", "folder"])
def test_a_place_that_takes_no_file_is_told(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        write_whole(tmp_path / place, b"data")
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["file", "folder"]
