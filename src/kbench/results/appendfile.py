"""A text file that several processes append lines to, and that survives a kill at any moment.

A line goes out in one ``write`` to a file opened with O_APPEND, under an exclusive lock, followed by ``fsync``. What
a killed writer left behind, a last line without its end, is skipped by readers and cut off by the next writer. A file
is only ever made shorter by putting another one in its place, under the lock of the old one (``keep_lines``).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kbench.core import UserError, write_whole

try:
    import fcntl
except ImportError:  # Windows has no flock; O_APPEND alone still keeps lines whole there in practice.
    fcntl = None  # type: ignore[assignment]


@contextmanager
def _locked(descriptor: int, exclusive: bool) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
    try:
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def append_lines(path: Path, lines: bytes) -> None:
    """Appends ``lines`` (whole, each with its end) so that they all arrive or none.

    Raises:
        UserError: the disk is full, read-only, or the path cannot be written.
    """
    while not _append(path, lines):
        pass


def _append(path: Path, lines: bytes) -> bool:
    """Whether ``lines`` went into the file of that name: while this waited for the lock, another may have taken it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o644)
    except OSError as error:
        raise _refused(path, error) from None
    try:
        with _locked(descriptor, exclusive=True):
            if not _is_at(descriptor, path):
                return False
            end = _cut_torn_line(descriptor)
            try:
                written = 0
                while written < len(lines):  # a nearly full disk takes part of it first, then refuses
                    written += os.write(descriptor, lines[written:])
                os.fsync(descriptor)
            except OSError as error:
                os.ftruncate(descriptor, end)
                raise _refused(path, error) from None
    finally:
        os.close(descriptor)
    return True


def keep_lines(path: Path, keep: Callable[[bytes], bool]) -> tuple[int, int]:
    """Puts a file with the lines that ``keep`` says in the place of ``path``, or none where it keeps none; how many
    lines were kept and how many there were. Writers wait, and go on in the new file.

    Raises:
        UserError: the file cannot be read or written.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise _refused(path, error) from None
    try:
        with _locked(descriptor, exclusive=True):
            if not _is_at(descriptor, path):
                return keep_lines(path, keep)
            lines = path.read_bytes().split(b"\n")[:-1]
            kept = [line for line in lines if keep(line)]
            if not kept:
                path.unlink()
            elif len(kept) < len(lines):
                write_whole(path, b"".join(line + b"\n" for line in kept))
    except OSError as error:
        raise _refused(path, error) from None
    finally:
        os.close(descriptor)
    return len(kept), len(lines)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def read_whole_lines(path: Path, offset: int) -> tuple[bytes, bool]:
    """Bytes from ``offset`` to the end of the last whole line, and whether a torn line follows.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with path.open("rb") as file, _locked(file.fileno(), exclusive=False):
            file.seek(offset)
            data = file.read()
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror}", where=str(path)) from None
    end = data.rfind(b"\n") + 1
    return data[:end], end < len(data)


def _cut_torn_line(descriptor: int) -> int:
    """Cuts the file after its last line end, and returns its length then."""
    size = end = os.fstat(descriptor).st_size
    step = 1 << 16
    while end > 0:
        start = max(0, end - step)
        os.lseek(descriptor, start, os.SEEK_SET)
        found = os.read(descriptor, end - start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        os.ftruncate(descriptor, end)
    return end


def _refused(path: Path, error: OSError) -> UserError:
    todo = {
        errno.ENOSPC: "free some space; what was stored before is intact",
        errno.EDQUOT: "free some of your quota; what was stored before is intact",
    }.get(error.errno or 0, "set KBENCH_RESULTS to a folder that you may write to")
    return UserError(f"results cannot be written: {error.strerror}", where=str(path), todo=todo)
