"""Where compiled code is kept, who could have written it, and what damaged or foreign files do: nothing."""

import os
import resource
import stat

import pytest

from edbatch.storage import cache_folder as module
from edbatch.storage.cache_folder import CacheFolder, cache_folder

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    """No folder is set or known, before and after."""
    for name in ("EDBATCH_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    cache_folder.cache_clear()
    yield
    cache_folder.cache_clear()


def refusal(caplog):
    """The one warning that there is no folder."""
    assert cache_folder() is None
    assert cache_folder() is None
    (record,) = caplog.records
    return record.getMessage()


def test_which_folder_it_is(tmp_path, monkeypatch):
    found = []
    for name, value in (("HOME", "home"), ("XDG_CACHE_HOME", "xdg"), ("EDBATCH_CACHE", "own")):
        monkeypatch.setenv(name, str(tmp_path / value))
        cache_folder.cache_clear()
        found.append(cache_folder().path)
    assert found == [tmp_path / part / "compiled" for part in ("home/.cache/edbatch", "xdg/edbatch", "own")]


def test_a_relative_xdg_folder_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder().path == tmp_path / ".cache/edbatch/compiled"


def test_a_user_without_home(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as it is without $HOME and entry in passwd
    assert "the user has no home folder; set EDBATCH_CACHE to" in refusal(caplog)
    assert list(tmp_path.iterdir()) == []


def test_a_home_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file" / "home"))
    assert "compiled code is not kept for later processes" in refusal(caplog)


def test_folders_are_made_for_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("EDBATCH_CACHE", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        folder = cache_folder()
        folder.store("entry", KEY, b"content")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (folder.path, *folder.path.parents[:2])] == [0o700] * 3
    assert stat.S_IMODE((folder.path / "entry").stat().st_mode) == 0o600
    assert folder.load("entry", KEY) == b"content"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o1777])
@pytest.mark.parametrize("place", ["own", "own/compiled"])
def test_folders_that_others_can_write(tmp_path, monkeypatch, caplog, mode, place):
    """In a sticky one others cannot touch what is the user's, so it may lie above, as /tmp does."""
    (tmp_path / "own" / "compiled").mkdir(parents=True)
    (tmp_path / place).chmod(mode)
    monkeypatch.setenv("EDBATCH_CACHE", str(tmp_path / "own"))
    if place == "own" and mode & stat.S_ISVTX:
        assert cache_folder().path == tmp_path / "own" / "compiled"
    else:
        assert f"{tmp_path / place} can be written by others" in refusal(caplog)


def give_away(path, monkeypatch):
    """Make a file another user's, or this process one of another user."""
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:
        uid = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: uid + 1)


@pytest.mark.parametrize("place", ["own", "own/compiled"])
def test_folders_of_another_user(tmp_path, monkeypatch, caplog, place):
    (tmp_path / "own" / "compiled").mkdir(parents=True)
    give_away(tmp_path / place, monkeypatch)
    monkeypatch.setenv("EDBATCH_CACHE", str(tmp_path / "own"))
    assert "belongs to another user" in refusal(caplog)


def test_a_link_to_a_folder_that_others_can_write(tmp_path, monkeypatch, caplog):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "own").symlink_to(tmp_path / "open")
    monkeypatch.setenv("EDBATCH_CACHE", str(tmp_path / "own"))
    assert f"{tmp_path / 'open'} can be written by others" in refusal(caplog)


def test_without_user_numbers_nothing_is_checked(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "geteuid")
    tmp_path.chmod(0o777)
    monkeypatch.setenv("EDBATCH_CACHE", str(tmp_path))
    assert cache_folder() is not None


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "part of the checksum": lambda path: path.write_bytes(path.read_bytes()[:20]),
    "no content": lambda path: path.write_bytes(path.read_bytes()[:32]),
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "garbage": lambda path: path.write_bytes(b"\x80\x04garbage" * 20),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
    "foreign": lambda path: CacheFolder(path.parent).store(path.name, OTHER, b"foreign"),
    "writable": lambda path: path.chmod(0o666),
    "absent": lambda path: path.unlink(),
    "a folder": replace_by_folder,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_entries_count_as_absent(tmp_path, damage):
    folder = CacheFolder(tmp_path)
    folder.store("entry", KEY, b"content")
    assert folder.load("entry", KEY) == b"content"
    DAMAGES[damage](tmp_path / "entry")
    assert folder.load("entry", KEY) is None
    folder.store("entry", KEY, b"content")
    assert folder.load("entry", KEY) == (None if damage == "a folder" else b"content")


def test_entries_of_another_user_count_as_absent(tmp_path, monkeypatch):
    folder = CacheFolder(tmp_path)
    folder.store("entry", KEY, b"content")
    give_away(tmp_path / "entry", monkeypatch)
    assert folder.load("entry", KEY) is None


def test_a_full_disk_is_one_warning(tmp_path, caplog):
    folder = CacheFolder(tmp_path)
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, most))
    try:
        for name in ("one", "two"):
            folder.store(name, KEY, b"content" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))
    (record,) = caplog.records
    assert f"compiled code cannot be kept in {tmp_path}" in record.getMessage()
    assert "too large; set EDBATCH_CACHE to" in record.getMessage()
    assert list(tmp_path.iterdir()) == []
    assert not folder.can_store


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*paths):
        raise KeyboardInterrupt

    folder = CacheFolder(tmp_path)
    monkeypatch.setattr(module.os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        folder.store("entry", KEY, b"content")
    assert list(tmp_path.iterdir()) == []
