"""The fuzzer: programs of fixed seeds show no difference, planted faults are noticed, shrunk and printed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from edbatch.fuzz.generating import generate
from edbatch.fuzz.program import Column, Declared, RandomProgram, Statement, code_of
from edbatch.fuzz.run import FuzzSettings, run
from edbatch.fuzz.script import script_of
from edbatch.fuzz.shrinking import shrink, signature
from edbatch.fuzz.surroundings import EXCLUDED
from edbatch.fuzz.worker import Outcome, Worker
from edbatch.fuzz.worker import run as run_here
from edbatch.runtime.backward import BatchedFunction

OPTIONS = (("compile", "False"), ("policy", "'depth'"), ("stack", "False"))


def program(*lines: Statement, result: str, declared: tuple[Declared, ...] = (), **more) -> RandomProgram:
    column = Column("x", ("randn(3, seed=1).requires_grad_()", "randn(3, seed=2).requires_grad_()"))
    return RandomProgram(
        "by hand", (column,), lines, Statement("{0}", (result,)), declared=declared, options=OPTIONS, **more
    )


def let(target: str, form: str, *operands: str) -> Statement:
    return Statement("{t0} = " + form, operands, (target,))


@pytest.mark.parametrize("seed", range(8))
def test_programs_show_no_difference(seed):
    kinds = Counter()
    for number in range(50):
        found = generate(seed, number)
        if ("compile", "True") in found.options:
            found = replace(found, options=tuple({**dict(found.options), "compile": "False"}.items()))
        outcome = run_here(found)
        assert not outcome.is_failure, f"{outcome}\n{code_of(found)}"
        kinds[outcome.kind] += 1
    assert kinds["equal"] > 25, "most programs run to their end"


def test_programs_with_kernels_show_no_difference(monkeypatch):
    monkeypatch.setenv("EDBATCH_COMPILE", "1")
    compiled = [p for p in (generate(100, number) for number in range(60)) if ("compile", "True") in p.options]
    assert compiled
    for found in compiled:
        outcome = run_here(found)
        assert not outcome.is_failure, f"{outcome}\n{code_of(found)}"


def test_the_same_seed_gives_the_same_programs():
    assert [generate(3, i) for i in range(20)] == [generate(3, i) for i in range(20)]
    assert generate(3, 0) != generate(4, 0)


def test_programs_differ_and_what_is_excluded_does_not_occur():
    programs = [generate(11, i) for i in range(200)]
    assert len({code_of(p) for p in programs}) == len(programs)
    text = "\n".join(s.form for p in programs for line in p.body for s in line.all())
    assert not [part for part in EXCLUDED if part in text]


def test_generating_leaves_torch_as_it_was():
    before = torch.get_default_dtype(), torch.is_grad_enabled()
    for i in range(30):
        generate(2, i)
    assert (torch.get_default_dtype(), torch.is_grad_enabled()) == before


def plant_value(monkeypatch):
    """Batched results are off by a thousandth."""
    from edbatch.runtime.execution import Execution

    gather = Execution.gather
    monkeypatch.setattr(Execution, "gather", lambda self, group: gather(self, group) + 1e-3)


def plant_gradient(monkeypatch):
    """The last gradient is lost."""
    backward = BatchedFunction.backward
    monkeypatch.setattr(BatchedFunction, "backward", staticmethod(lambda *args: (*backward(*args)[:-1], None)))


def plant_state(monkeypatch):
    """A call leaves the grad mode changed."""
    from edbatch.pipeline import Pipeline

    call = Pipeline.__call__

    def leaky(self, *args):
        result = call(self, *args)
        torch.set_grad_enabled(False)
        return result

    monkeypatch.setattr(Pipeline, "__call__", leaky)


def plant_error(monkeypatch):
    from edbatch.pipeline import Pipeline

    def broken(self, *args):
        raise KeyError("planted")

    monkeypatch.setattr(Pipeline, "__call__", broken)


@pytest.mark.parametrize(
    ("plant", "kind", "words"),
    [
        (plant_value, "wrong", "result 0 of example 0"),
        (plant_gradient, "wrong", "gradient of"),
        (plant_state, "wrong", "state of torch: grad mode"),
        (plant_error, "error", "planted"),
    ],
)
def test_planted_faults_are_noticed(monkeypatch, plant, kind, words):
    parameter = Declared("p", "nn.Parameter(randn(3, seed=5))", "parameter")
    faulty = program(let("v", "torch.tanh({0}) * {1}", "x", "p"), result="v", declared=(parameter,))
    assert run_here(faulty).kind == "equal"
    plant(monkeypatch)
    try:
        outcome = run_here(faulty)
    finally:
        torch.set_grad_enabled(True)
    assert outcome.kind == kind
    assert words in outcome.message


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (let("v", "({0} * nn.Parameter(torch.ones(3))).sum().item()", "x"), "refused"),
        (let("v", "{0} @ torch.ones(7)", "x"), "torch raises"),
        (let("v", "F.dropout({0}, 0.5)", "x"), "torch raises"),
    ],
)
def test_what_is_no_failure(line, kind):
    assert run_here(program(line, result="v")).kind == kind


def test_rounding_that_torch_itself_does_not_settle_is_no_difference(monkeypatch):
    plant_value(monkeypatch)
    unsettled = program(let("v", "({0} * 1e14).sin()", "x"), result="v")
    assert run_here(unsettled).kind == "unstable"


def test_shrinking_keeps_the_failure_and_drops_the_rest(monkeypatch):
    plant_gradient(monkeypatch)
    large = program(
        let("a", "{0} * 2", "x"),
        Statement("with torch.autocast('cpu', torch.bfloat16, enabled=False):", body=(let("b", "{0}.cos()", "a"),)),
        let("c", "torch.relu({0})", "b"),
        result="c",
        changes=((), ()),
        is_module=True,
    )
    outcome = run_here(large)
    assert outcome.kind == "wrong"
    small = shrink(large, outcome, run_here, seconds=60)
    assert signature(run_here(small)) == signature(outcome)
    assert len(small.body) <= 1
    assert len(small.changes) == 1
    assert not small.is_module


def test_a_script_fails_as_the_program_did(tmp_path):
    lost = program(let("v", "nn.Identity()({0})", "x"), result="v")
    file = tmp_path / "script.py"
    file.write_text(script_of(lost, Outcome("wrong", "as told")))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (0, "equal: \n"), done.stderr
    planted = "edbatch.Batched.one_by_one\nedbatch.Batched.forward = lambda self, xs: [x * 2 for x in xs]\n"
    file.write_text(file.read_text().replace("\n\nTOLERANCE", f"\n\n{planted}\nTOLERANCE"))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    assert done.stdout.startswith("wrong: call 0: result 0 of example 0 is")
    assert "edbatch.fuzz" not in file.read_text()


def test_crashes_and_hangs_are_outcomes():
    dies = program(let("v", "(__import__('os')._exit(3), {0})[1]", "x"), result="v")
    sleeps = program(let("v", "(__import__('time').sleep(60), {0})[1]", "x"), result="v")
    with Worker(frozenset(), limit=60) as worker:
        assert worker.run(dies) == Outcome("crash", "the process ended with exit code 3")
        assert worker.run(program(let("v", "{0} * 2", "x"), result="v")).kind == "equal"  # started again
        worker.limit = 1
        assert worker.run(sleeps).kind == "hang"


def test_the_command_sums_up(tmp_path):
    console = Console(record=True, width=200)
    tally = run(FuzzSettings(seed=0, programs=5, output=tmp_path / "findings", excluded=frozenset(EXCLUDED)), console)
    assert tally.programs == 5
    assert not tally.findings
    assert not (tmp_path / "findings").exists()
    assert "5 programs" in console.export_text()


def test_ctrl_c_ends_with_the_summary(monkeypatch, tmp_path):
    outcomes = iter([Outcome("equal", ""), Outcome("refused", "BatchError: because")])

    def answer(self, seed, number):
        outcome = next(outcomes, None)
        if outcome is None:
            raise KeyboardInterrupt
        return outcome

    monkeypatch.setattr(Worker, "run_number", answer)
    console = Console(record=True, width=200)
    tally = run(FuzzSettings(output=tmp_path), console)
    assert tally.kinds == {"equal": 1, "refused": 1}
    assert "2 programs, 1 refused, 0 failed" in console.export_text()
