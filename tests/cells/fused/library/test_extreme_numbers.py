"""No number that comes from data reaches an address unchecked, and whole numbers wrap round as torch's do."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from extreme_numbers import CASES, END, NUMBERS

import edbatch


def test_every_pick_is_torchs_or_an_error():
    """In another process: one that reads foreign memory may not live to tell."""
    script, environment = Path(__file__).parent / "extreme_numbers.py", {**os.environ, "EDBATCH_COMPILE": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"it ended in {lines[-1:]}: {done.stderr[-2000:]}"
    found = [line for line in lines if "ours" in line]
    assert len(found) == len(set(CASES)) * len(NUMBERS)
    assert [line for line in found if line["ours"] != line["theirs"]] == []
    assert {line["ours"] == "error" for line in found} == {True, False}


EDGES = torch.tensor([END, -END - 1, END - 1, -END, 2**62, -(2**62), 3037000500, -3037000500, 1, 0, -1])


@pytest.mark.parametrize("function", [
    lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: (-a, -b), lambda a, b: a.abs() + b.abs(),
    lambda a, b: 7 - a, lambda a, b: a**2 - b, lambda a, b: torch.addcmul(a, b, b), lambda a, b: (a * b).sum(),
    lambda a, b: a // 3 + b // -7, lambda a, b: torch.stack([a, b, a + b]).sum(), lambda a, b: (a > b) + a,
    lambda a, b: torch.stack([a, b]).index_put((b * 0,), a, accumulate=True),
])  # fmt: skip
@pytest.mark.parametrize("width", [None, 1, 9])
def test_whole_numbers_wrap_round(compiled, function, width):
    a, b = (v.reshape(-1) for v in torch.meshgrid(EDGES, EDGES, indexing="ij"))
    if width is not None:
        a, b = a[:, None].repeat(1, width), b[:, None].repeat(1, width)
        a[:, ::2] += 1
    batched = edbatch.batch(edbatch.cell(function), stack=False)
    for ours, theirs in zip(batched(a, b), batched.one_by_one(a, b), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="torch gives other numbers elsewhere")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 9])
def test_floats_that_are_no_whole_numbers(compiled, dtype, width):
    odd = [float(v) for v in ("nan", "inf", "-inf", "1e30", "-1e30", "9.3e18", 2**63, -(2**63), 2**62, 1.9, -1.9, -0.0)]
    x = torch.tensor(odd, dtype=dtype)[:, None].repeat(1, width)
    longs, masks = edbatch.batch(edbatch.cell(lambda x: ((x * 1).long() + 1, (x * 1).bool())))(x)
    assert torch.equal(longs, x.long() + 1)
    assert torch.equal(masks, x.bool())
