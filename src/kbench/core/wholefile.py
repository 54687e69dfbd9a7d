"""Files that are whole or as they were: under their name stands the old content or the new one, never a part."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from .errors import UserError


def write_whole(path: Path, data: bytes) -> None:
    """Writes ``data`` to ``path``, whose folders are made.

    A full disk, a kill or a power cut leaves what was there. After an error nothing else is left either; after a kill a
    hidden ``.NAME.*.part`` may be.

    Raises:
        UserError: the file cannot be written there.
    """
    # A name of its own: two writers at once each write a whole file, and the last one stays.
    scratch = path.parent / f".{path.name}.{secrets.token_hex(8)}.part"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())  # else a power cut could leave the new name on an empty file
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UserError(f"cannot be written: {error.strerror or error}", where=str(path)) from None
