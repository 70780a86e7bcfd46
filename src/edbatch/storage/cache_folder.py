"""The folder in which compiled code is kept for later processes: which one it is, and whether it can be trusted.

In: $EDBATCH_CACHE, $XDG_CACHE_HOME and the user's home. Out: a `CacheFolder`, or None after a warning that says why.
What is kept there is executed later, so nobody else may be able to write there. Damaged entries count as absent.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from functools import cache
from pathlib import Path

from edbatch.storage.atomic import write_atomically

log = logging.getLogger("edbatch")
_FIX = "set EDBATCH_CACHE to a folder that only you can write"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class CacheFolder:
    """Entries by name. Each is stored with a key that says what it is; under another key it counts as absent."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._has_warned = False

    def load(self, name: str, key: bytes) -> bytes | None:
        """The payload as it was stored, or None if it is absent, damaged or stored under another key."""
        try:
            with open(self.path / name, "rb") as file:
                is_ours = _complaint(os.fstat(file.fileno())) is None
                content = file.read() if is_ours else b""
        except OSError:
            return None
        checksum, payload = content[:32], content[32:]
        return payload if checksum == _checksum(key, payload) else None

    def store(self, name: str, key: bytes, payload: bytes) -> None:
        """Store an entry in place of an older one; if that fails, warn once and go on."""
        try:
            _make(self.path)  # it may have been deleted since
            write_atomically(self.path / name, _checksum(key, payload) + payload, mode=0o600)
        except OSError as error:
            if not self._has_warned:
                why = error.strerror or error
                log.warning("compiled code cannot be kept in %s for later processes: %s; %s", self.path, why, _FIX)
            self._has_warned = True

    @property
    def can_store(self) -> bool:
        return not self._has_warned and os.access(self.path, os.W_OK)


@cache
def cache_folder() -> CacheFolder | None:
    """The folder for this process; None if none can be trusted, and then compiled code lasts as long as the process."""
    try:
        path = _chosen()
        _make(path)
        path = path.resolve()  # so that links cannot be changed after the check
        _check(path)
    except OSError as error:
        log.warning("compiled code is not kept for later processes: %s; %s", error, _FIX)
        return None
    return CacheFolder(path)


def _chosen() -> Path:
    base, home = os.environ.get("EDBATCH_CACHE"), os.path.expanduser("~")
    if not base:
        caches = os.environ.get("XDG_CACHE_HOME", "")
        if not os.path.isabs(caches):  # unset, or relative, which the rules of XDG say to ignore
            if not os.path.isabs(home):
                raise FileNotFoundError("the user has no home folder")
            caches = os.path.join(home, ".cache")
        base = os.path.join(caches, "edbatch")
    return Path(base).absolute() / "compiled"


def _make(path: Path) -> None:
    """Make a folder and those above it, which only the user can open."""
    if not path.is_dir():
        _make(path.parent)
        path.mkdir(0o700, exist_ok=True)


def _check(path: Path) -> None:
    """Raise a PermissionError if anybody but the user and root can change the folder or put another one in its place.

    OpenSSH checks its files in the same way.
    """
    for place in (path, *path.parents):
        info = place.stat()
        complaint = _complaint(info, can_be_sticky=place != path)
        if complaint:
            raise PermissionError(f"{place} {complaint}")


def _complaint(info: os.stat_result, can_be_sticky: bool = False) -> str | None:
    """Why a file or folder cannot be trusted. In a sticky folder nobody can rename or delete what is not theirs."""
    if not hasattr(os, "geteuid"):
        return None
    if info.st_uid not in (os.geteuid(), 0):
        return "belongs to another user"
    is_sticky = can_be_sticky and info.st_mode & stat.S_ISVTX
    return "can be written by others" if info.st_mode & _OTHERS_WRITE and not is_sticky else None


def _checksum(key: bytes, payload: bytes) -> bytes:
    return hashlib.sha256(key + payload).digest()
