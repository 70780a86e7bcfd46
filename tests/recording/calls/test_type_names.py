"""Names of node types: the same in every process and for every order of examples, and never shared by two types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from names_of_types import FIRST, SECOND, Model, X, assert_independent_of_order, by_example, names
from torch import nn
from torch.nn import functional as F

import edbatch
import zoo


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_the_order_of_examples_does_not_change_the_names(case):
    model, columns = zoo.make(case)
    found = assert_independent_of_order(model, *columns)
    assert max(map(len, found)) < 120


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
def test_the_mode_around_the_call_does_not_change_the_names(case):
    model, columns = zoo.make(case)
    training = by_example(model.train(), *columns)
    evaluation = by_example(model.eval(), *columns)
    with torch.no_grad():
        without_grad = by_example(model, *columns)
    with torch.inference_mode():
        inference = by_example(model, *columns)
    assert training == evaluation == without_grad == inference


# ---- what surrounds a call


def test_only_what_differs_from_the_whole_call_is_named():
    @torch.no_grad()
    def without_grad(x):
        return FIRST(x) + x

    def function(i):
        x = SECOND(X)
        if i == 0:
            return FIRST(x) + x
        if i == 1:
            return without_grad(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i == 2):
            return FIRST(x)

    found = assert_independent_of_order(function, range(4))
    plain = {"SECOND(f32[4])", "FIRST(f32[4])", "sum of values f32[4]"}
    added = {"FIRST(f32[4]) without grad", "sum of values f32[4] without grad"}
    assert found == plain | added | {"FIRST(f32[4]) with autocast to cpu bfloat16"}
    with torch.no_grad():
        assert names(function, [0, 1]) == plain

    def in_part(i):
        x = SECOND(X)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=i == 2):
            return FIRST(x if i == 2 else x.float())

    with torch.autocast("cpu", dtype=torch.bfloat16):
        outside = {"Tensor.float(bf16[4]) without autocast", "FIRST(f32[4]) without autocast"}
        assert names(in_part, [2, 3]) == {"SECOND(f32[4])", "FIRST(bf16[4])"} | outside


def test_a_module_in_another_mode_than_the_model_has_the_same_name():
    model = Model(nn.ModuleList([nn.Dropout(), nn.Linear(4, 4)]))
    found = names(model, [0, 1])
    model.cells[0].eval()
    assert names(model, [0, 1]) == found


def test_the_mode_of_a_function_of_torch_is_not_named():
    def function(i, *, training):
        return F.dropout(FIRST(X), 0.25, training)

    found = names(function, [0], training=True)
    assert found == {"FIRST(f32[4])", "functional.dropout(f32[4], p=0.25)"}
    assert names(function, [0], training=False) == found
    batched = edbatch.batch(lambda x, on: F.dropout(x, 1.0, on))
    assert batched(torch.ones(2, 4), [True, False]).tolist() == [[0] * 4, [1] * 4]


def test_the_device_of_the_model_is_not_named():
    from edbatch.recording.calls.names import Names
    from edbatch.recording.program.paths import Paths
    from edbatch.spec import Spec

    gpu, cpu = Spec((4,), torch.float32, torch.device("cuda:1")), Spec((4,), torch.float32, torch.device("cpu"))
    on_gpu, on_cpu = (Names(Paths(FIRST), {}, torch.device(where)) for where in ("cuda:0", "cpu"))
    assert [on_gpu.spec(gpu), on_gpu.spec(cpu)] == ["f32[4]", "f32[4]@cpu"]
    assert [on_cpu.spec(gpu), on_cpu.spec(cpu)] == ["f32[4]@cuda", "f32[4]"]


# ---- other processes


PROGRAM = """
import json, sys
import torch
import edbatch, zoo
from names_of_types import FIRST, X, step
from test_names_of_arguments import STATIC
from test_paths_of_modules import REACHED

reverse = sys.argv[1] == "reverse"
found = {}
for case in zoo.CASES[3:7]:
    model, columns = zoo.make(case)
    found[case.name] = sorted(edbatch.record(model, *[list(c)[::-1 if reverse else 1] for c in columns]).type_names)
for name, (make, *_) in REACHED.items():
    found[name] = sorted(edbatch.record(make(), [1, 0] if reverse else [0, 1]).type_names)
for name, make in STATIC.items():
    value = make()
    found[name] = sorted(edbatch.record(lambda i: step(FIRST(X), value), [0]).type_names)
print(json.dumps(found))
"""


def test_another_process_gives_the_same_names():
    def start(seed, order):
        here = Path(__file__).parent
        path = os.pathsep.join(map(str, (here, here.parent / "program", Path(zoo.__file__).parent)))
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", PROGRAM, order]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)

    processes = [start("1", "forward"), start("2", "reverse")]
    first, second = (process.communicate()[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert first == second
    assert "#" not in first


def test_functions_that_recording_replaces_keep_their_names():
    batched = edbatch.batch(lambda x: torch.cat((x, torch.stack((x, x)).sum(0))))
    batched(torch.randn(2, 3))
    assert "torch.cat((f32[3], f32[3]))" in batched.explain()
