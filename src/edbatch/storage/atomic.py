"""Writes files so that a reader never sees half of one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def can_write(path: Path) -> bool:
    """Whether a file could be written to this path; worth asking before long work."""
    return path.parent.is_dir() and os.access(path.parent, os.W_OK) and not path.is_dir()


def write_atomically(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write the whole file or, if anything fails, nothing; an older file of that name is replaced at the very end."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        # not by the module tempfile, whose files only their owner can read
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
