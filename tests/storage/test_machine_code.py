"""Compiled functions on disk: later processes find them, and compile what is damaged or made of something else."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import edbatch
from edbatch.storage.cache_folder import cache_folder

KERNELS = """
import numpy as np
from edbatch.rewriting.hoist_loops import recurrent_slots
two = np.zeros(2, np.int64)
print(recurrent_slots(two, np.array([-1, -1, 0, 0]), np.array([0, 1]), two[:1]).tolist())
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("EDBATCH_CACHE", str(tmp_path))
    cache_folder.cache_clear()
    yield tmp_path / "compiled"
    cache_folder.cache_clear()


def double(x):
    return 2 * x


def triple(x):
    return 3 * x


def compiled(function=double, what="something", sources="", **options):
    """The function, and how many of its forms came from disk."""
    from edbatch.storage.machine_code import MachineCode

    made = MachineCode(what, sources).function(function, "int64(int64)", **options)
    return made, sum(made.stats.cache_hits.values())


def test_what_is_known_is_not_compiled_again(folder, caplog):
    for hits in (0, 1):
        made, found = compiled()
        assert (made(4), found) == (8, hits)
    assert [r.getMessage() for r in caplog.records] == [f"compiling something (once; they are kept in {folder})"]
    assert len(list(folder.iterdir())) == 1


@pytest.mark.parametrize("change", ["sources", "options", "versions", "CPU"])
def test_all_that_decides_the_code_is_in_the_key(folder, monkeypatch, change):
    from numba.core.codegen import JITCPUCodegen

    from edbatch.storage import machine_code

    compiled()
    if change == "versions":
        monkeypatch.setattr(machine_code, "_VERSIONS", ("0", *machine_code._VERSIONS[1:]))
    if change == "CPU":
        monkeypatch.setattr(JITCPUCodegen, "_get_host_cpu_name", lambda self: "another")
    changes = {"sources": {"sources": "edited"}, "options": {"nogil": True}}
    made, found = compiled(**changes.get(change, {}))
    assert (made(4), found) == (8, 0)


def test_a_file_of_another_function_is_replaced(folder):
    compiled()
    (ours,) = folder.iterdir()
    compiled(triple)
    (theirs,) = set(folder.iterdir()) - {ours}
    shutil.copy(theirs, ours)
    for hits in (0, 1):
        made, found = compiled()
        assert (made(4), found) == (8, hits)


@pytest.mark.parametrize("content", [b"no pickle", pickle.dumps(None), pickle.dumps((1, 2)), pickle.dumps((None,) * 9)])
def test_what_numba_cannot_use_is_replaced(folder, monkeypatch, content):
    """Even if its checksum is right: another numba may have written it."""
    from edbatch.storage import machine_code

    with monkeypatch.context() as patch:
        patch.setattr(machine_code, "dumps", lambda reduced: content)
        compiled()
    for hits in (0, 1):
        made, found = compiled()
        assert (made(4), found) == (8, hits)


def test_what_is_damaged_is_never_unpickled(folder, monkeypatch):
    from edbatch.storage import machine_code

    compiled()
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:32] + pickle.dumps("planted"))

    def refuse(content):
        raise AssertionError("unpickled")

    monkeypatch.setattr(machine_code.pickle, "loads", refuse)
    monkeypatch.setattr(machine_code.MachineCode, "announce", lambda self: None)
    made, found = compiled()
    assert (made(4), found) == (8, 0)


class Planted:
    """Whoever unpickles it makes a folder."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("is_open", [False, True])
def test_what_others_could_have_planted_is_not_executed(folder, tmp_path, monkeypatch, is_open):
    from edbatch.storage import machine_code

    with monkeypatch.context() as patch:
        patch.setattr(machine_code, "dumps", lambda reduced: pickle.dumps(Planted(tmp_path / "executed")))
        compiled()
    if is_open:
        folder.chmod(0o777)
        cache_folder.cache_clear()
    made, found = compiled()
    assert (made(4), found) == (8, 0)
    assert (tmp_path / "executed").exists() is not is_open, "the file would do harm, but for the check"


def test_without_a_folder_functions_are_compiled_in_memory(folder, caplog):
    folder.mkdir()
    folder.chmod(0o777)
    for _ in range(2):
        made, found = compiled(what="the functions")
        assert (made(4), found) == (8, 0)
    first, *others = [r.getMessage() for r in caplog.records]
    assert "compiled code is not kept for later processes" in first
    assert others == ["compiling the functions (they cannot be kept)"] * 2
    assert list(folder.iterdir()) == []


@pytest.fixture
def layout(tmp_path):
    """A copy of a room with compiled loops and what it needs, without torch."""
    source, package = Path(edbatch.__file__).parent, tmp_path / "edbatch"
    for room in ("layout", "rewriting", "scheduling", "storage"):
        shutil.copytree(source / room, package / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "errors.py", package)
    (package / "__init__.py").touch()
    return package / "layout"


def start(layout, code=KERNELS, **environment):
    paths = {"PYTHONPATH": str(layout.parent.parent), "EDBATCH_CACHE": str(layout.parent.parent / "cache")}
    settings = {**os.environ, **paths, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(layout, code=KERNELS, **environment):
    out, errors = start(layout, code, **environment).communicate(timeout=300)
    return out.strip(), errors.strip().splitlines()


def test_an_edit_of_another_file_is_noticed(layout):
    """Of a function that the compiled one includes; size and date of the file stay."""
    assert run(layout)[0] == "[False]"
    assert run(layout) == ("[False]", [])
    helpers = layout / "layout_loops.py"
    text, info = helpers.read_text(), helpers.stat()
    helpers.write_text(text.replace("return at, at + 1\n", "return at, at + 2\n"))
    assert helpers.read_text() != text
    os.utime(helpers, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert run(layout)[0] == "[True]"


def imports_of(path):
    """The modules of edbatch that a file names, as paths below the package."""
    return {name.replace(".", "/") for name in re.findall(r"(?:from|import) edbatch\.([\w.]+)", path.read_text())}


def test_all_sources_of_loops_take_part():
    """Whoever has loops lies in a room whose contents are in the key, and so does all that its loops can call."""
    from edbatch.storage.loops import ROOMS

    source = Path(edbatch.__file__).parent
    having = [path for path in source.rglob("*.py") if "storage/loops" in imports_of(path)]
    assert len(having) > 5
    for path in having:
        assert str(path.parent.relative_to(source)) in ROOMS, path
        assert {name.split("/")[0] for name in imports_of(path)} <= {*ROOMS, "storage", "errors"}, path


def test_an_edit_of_any_source_of_loops_changes_the_key(tmp_path):
    from edbatch.storage.loops import ROOMS, sources

    source = Path(edbatch.__file__).parent
    for room in ROOMS:
        shutil.copytree(source / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    keys, files = {sources(tmp_path)}, sorted(tmp_path.rglob("*.py"))
    for path in files:
        path.write_text(path.read_text() + "\n")
        keys.add(sources(tmp_path))
    assert len(keys) == 1 + len(files) > 20


def test_nothing_is_written_beside_the_sources(layout):
    before = sorted(layout.rglob("*"))
    run(layout)
    assert sorted(layout.rglob("*")) == before


def test_two_processes_at_once(layout):
    for process in [start(layout) for _ in range(2)]:
        out, errors = process.communicate(timeout=300)
        assert (process.returncode, out.strip()) == (0, "[False]"), errors
    assert run(layout) == ("[False]", [])


def test_neither_home_nor_sources_can_be_written(layout):
    """As in a container; root could write anything but a folder below a file."""
    (layout.parent / "file").touch()
    shutil.rmtree(layout / "__pycache__", ignore_errors=True)
    (layout / "__pycache__").touch()
    out, errors = run(layout, EDBATCH_CACHE="", XDG_CACHE_HOME="", HOME=str(layout.parent / "file" / "home"))
    assert out == "[False]"
    assert len(errors) == 2
    assert "compiled code is not kept for later processes" in errors[0]
    assert "compiling edbatch's own loops" in errors[1]
    (layout.parent / "own").mkdir()
    assert "they are kept in" in run(layout, EDBATCH_CACHE=str(layout.parent / "own"))[1][0]
