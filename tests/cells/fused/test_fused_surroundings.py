"""Fused kernels in their surroundings: switches, the cache on disk, other processes, threads."""

import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from fused_kernels import DIM, ROWS, Node, fused_cells, rows

import edbatch
from edbatch.storage.cache_folder import cache_folder
from edbatch.storage.loops import ROOMS


def node_and_rows(number=ROWS, dtype=torch.float32):
    torch.manual_seed(0)
    return edbatch.cell(Node().to(dtype)), rows(dtype=dtype, number=number), rows(dtype=dtype, number=number)


def test_switches(monkeypatch):
    node, a, b = node_and_rows()
    for environment, argument, expected in (("1", True, 1), ("1", False, 0), ("0", True, 0), ("", True, 0)):
        monkeypatch.setenv("EDBATCH_COMPILE", environment)
        batched = edbatch.batch(node, compile=argument)
        out = batched(a, b)
        assert len(fused_cells(batched)) == expected
        torch.testing.assert_close(out, node(a, b), rtol=1e-5, atol=1e-5)


def test_under_a_dispatch_mode_cells_run_as_torch_ops(compiled):
    from torch.utils.flop_counter import FlopCounterMode

    node, a, b = node_and_rows()
    batched = edbatch.batch(node)
    with FlopCounterMode(display=False) as counter:
        batched(a, b)
    assert counter.get_total_flops() >= 2 * 2 * ROWS * DIM * DIM
    assert not fused_cells(batched)


def in_a_new_process(code, **environment):
    """Runs code with `node`, `a`, `b` and `batched` at hand; it fails by raising."""
    here = os.path.dirname(__file__)
    setup = (
        f"import sys; sys.path[:0] = [{here!r}, {os.path.dirname(here)!r}]\n"
        "import os, torch, edbatch\nfrom test_fused_surroundings import *\n"
        "node, a, b = node_and_rows(3000)\nbatched = edbatch.batch(node, policy='depth')\n"
        "def check():\n"
        "    (batched(a, b).sum()).backward()\n"
        "    torch.testing.assert_close(batched(a, b), node(a, b), rtol=1e-5, atol=1e-5)\n"
    )
    settings = {**os.environ, "EDBATCH_COMPILE": "1", **environment}
    done = subprocess.run(
        [sys.executable, "-c", setup + code], env=settings, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture
def settings(tmp_path):
    """Of a process with a cache of its own, in which planning is compiled already if it is in that of the tests."""
    folder, known = tmp_path / "cache" / "compiled", cache_folder()
    folder.mkdir(parents=True)
    for room in ROOMS if known else ():
        for path in known.path.glob(f"edbatch.{room}.*"):
            shutil.copy(path, folder)
    return {"EDBATCH_CACHE": str(folder.parent)}


@pytest.mark.parametrize("kind", ["below a file", "read-only"])
def test_a_cache_that_cannot_be_written(tmp_path, kind):
    if kind == "read-only" and os.geteuid() == 0:
        pytest.skip("root can write everywhere")
    if kind == "below a file":
        (tmp_path / "file").touch()
        place = tmp_path / "file" / "cache"
    else:
        place = tmp_path / "cache"
        (place / "compiled").mkdir(parents=True)
        (place / "compiled").chmod(0o500)
    done = in_a_new_process("check()\nassert fused_cells(batched)", EDBATCH_CACHE=str(place))
    lines = done.stderr.splitlines()
    assert any("compiling the kernels of" in line and "(they cannot be kept)" in line for line in lines)
    assert ["compiled code" in line for line in lines].count(True) == 1


def test_a_second_process_compiles_nothing(settings, tmp_path):
    assert "compiling the kernels of" in in_a_new_process("check()", **settings).stderr
    files = sorted(p.name for p in tmp_path.rglob("*"))
    assert "compiling" not in in_a_new_process("check()", **settings).stderr
    assert sorted(p.name for p in tmp_path.rglob("*")) == files


def test_a_damaged_cache_heals(settings, tmp_path):
    """Every file is damaged, each in one of several ways; the second process after that compiles nothing."""
    code = (
        "cell = edbatch.batch(edbatch.cell(lambda x: (x * 3).tanh() + 1), policy='depth')\n"
        "torch.testing.assert_close(cell(a), (a * 3).tanh() + 1, rtol=1e-5, atol=1e-5)\nassert fused_cells(cell)\n"
    )
    in_a_new_process(code, **settings)
    files = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    contents = [path.read_bytes() for path in files]
    assert files
    for i, path in enumerate(files):
        others = contents[i - 1]
        path.write_bytes([b"", contents[i][: len(contents[i]) // 2], b"garbage" * 100, others, others][i % 5])
    assert "compiling the kernels of" in in_a_new_process(code, **settings).stderr
    assert in_a_new_process(code, **settings).stderr == ""


def test_the_cache_may_be_deleted_at_any_time(settings):
    code = (
        "check()\nimport shutil; shutil.rmtree(os.environ['EDBATCH_CACHE'])\n"
        "other = edbatch.batch(edbatch.cell(lambda x: (x * 3).exp() - 2), policy='depth')\n"
        "torch.testing.assert_close(other(a), (a * 3).exp() - 2, rtol=1e-5, atol=1e-5)\n"
        "assert os.listdir(os.environ['EDBATCH_CACHE']) == ['compiled']\n"
    )
    in_a_new_process(code, **settings)


def test_a_forked_child_runs_kernels():
    code = (
        "torch.set_num_threads(1)  # torch's own threads do not survive a fork\n"
        "check()\n"
        "with torch.no_grad(): expected = batched(a, b)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    with torch.no_grad(): os._exit(0 if torch.equal(batched(a, b), expected) else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    in_a_new_process(code)


def test_two_threads_at_once(compiled):
    """Each thread has its own mini-batch in its own memory; kernels are shared."""
    node, a, b = node_and_rows(200, torch.float64)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    batched = edbatch.batch(node, policy="depth")
    expected = [node(a * k, b) for k in range(4)]
    wrong = []

    def work(k):
        for _ in range(10):
            out = batched(a * k, b)
            (gradient,) = torch.autograd.grad(out.sum(), b)
            if not torch.allclose(out, expected[k], rtol=1e-9) or not gradient.isfinite().all():
                wrong.append(k)

    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    finally:
        torch.set_num_threads(before)
    assert wrong == []


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_parts_of_a_kernel_make_the_whole(compiled, parts):
    """A kernel's parts do different columns, also where gradients are added to one row many times."""
    from edbatch.cells.fused.library.native import compile_kernels

    source = (
        "def kernel(B, index, target, n0, part, parts):\n    for r in range(B):\n"
        "        for j in range(n0 * part // parts, n0 * (part + 1) // parts):\n"
        "            at = load_i64(index, r, 1) * n0 + j\n"
        "            store_f64(target, at, load_f64(target, at, 0) + 1.0, 0)\n"
    )
    (kernel,) = compile_kernels([source], "parts")
    index, target = np.array([0, 2, 0, 0]), np.zeros((3, 5))
    for part in range(parts):
        kernel(4, index.ctypes.data, target.ctypes.data, 5, part, parts)
    assert target[:, 0].tolist() == [3.0, 0.0, 1.0]
    assert (target == target[:, :1]).all()
