"""Plans, needs and compiled programs are checked: for everything that they promise there is a fault that is found."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from edbatch.errors import GraphError
from edbatch.spec import Spec
from staged import X, executed, prepared


@pytest.fixture(scope="module")
def plan():
    return prepared()[0]


@pytest.fixture(scope="module")
def needs():
    """With what they are the needs of."""
    found, results, needs = prepared()
    return needs, found.recording, results


def item(array, at, value):
    array = array.copy()
    array[at] = value
    return array


FAULTS = {
    "the graph has other types": lambda p: {"graph": replace(p.graph, type_names=p.graph.type_names[::-1])},
    "types of the graph: number 0 is 1, not 0": lambda p: {"graph": replace(p.graph, types=item(p.graph.types, 0, 1))},
    "inputs of the graph: number 2 is 1, not 0": lambda p: {
        "graph": replace(p.graph, inputs=item(p.graph.inputs, 2, 1))
    },
    "inputs of each node of the graph: number 3 is 2, not 1": lambda p: {
        "graph": replace(p.graph, offsets=item(p.graph.offsets, 4, 4))
    },
    "node 0 has type 9": lambda p: {"recording": replace(p.recording, types=item(p.recording.types, 0, 9))},
    "own, by batch: number 0 is 5, not 0": lambda p: {"layout": replace(p.layout, own=item(p.layout.own, 0, 5))},
}


@pytest.mark.parametrize("match", FAULTS)
def test_parts_of_a_plan_are_checked_and_agree(plan, match):
    plan.check()
    with pytest.raises(AssertionError, match=match):
        replace(plan, **FAULTS[match](plan)).check()


@pytest.mark.parametrize(
    ("part", "name", "match"), [("graph", "inputs", "inputs must be earlier"), ("schedule", "order", "exactly once")]
)
def test_graph_and_schedule_are_checked(plan, part, name, match):
    value = getattr(plan, part)
    broken = replace(value, **{name: item(getattr(value, name), 0, 1)})
    with pytest.raises(GraphError, match=match):
        replace(plan, **{part: broken}).check()


def mask(needs, name, t, value):
    masks = list(getattr(needs, name))
    masks[t] = value
    return {name: tuple(masks)}


WRONG_NEEDS = {
    "length of rows, by type: number 0 is 1, not 2": lambda n: mask(n, "rows", 0, (False,)),
    "length of shared, by type: number 2 is 0, not 1": lambda n: mask(n, "shared", 2, ()),
    "length of outs, by type: number 1 is 2, not 1": lambda n: mask(n, "outs", 1, (True, True)),
    "shared tensors of weigh.* take part": lambda n: mask(n, "shared", 2, (False,)),
    "by_output: number 0 is True, not False": lambda n: {"by_output": item(n.by_output, (0, 0), True)},
    "rows, by slot: number 0 is True, not False": lambda n: mask(n, "rows", 0, (True, False)),
    "differentiable, by output: number 1 is True, not False": lambda n: {
        "differentiable": item(n.differentiable, 1, True)
    },
    "outs, by output: number 3 is False, not True": lambda n: mask(n, "outs", 2, (False,)),
}


@pytest.mark.parametrize("match", WRONG_NEEDS)
def test_needs_are_checked(needs, match):
    needs, recording, results = needs
    needs.check(recording, results)
    with pytest.raises(AssertionError, match=match):
        replace(needs, **WRONG_NEEDS[match](needs)).check(recording, results)


def test_what_results_say_of_gradients_is_checked(needs):
    needs, recording, results = needs
    assert [group.needs_grad for group in results.groups] == [True, True, False]
    groups = *results.groups[:2], replace(results.groups[2], needs_grad=True)
    with pytest.raises(AssertionError, match=r"leaf 2.* says True of its gradient"):
        needs.check(recording, replace(results, groups=groups))


def test_plans_and_needs_are_frozen_and_print_shortly(plan, needs):
    assert str(plan) == "Plan(Recording(14 nodes, 7 types, 2 inputs), Layout(7 batches, 4 views, 4 gathers))"
    assert str(needs[0]) == "Needs(5 outputs of 5 types take part in backward)"
    with pytest.raises(FrozenInstanceError):
        plan.layout = None
    with pytest.raises(FrozenInstanceError):
        needs[0].rows = ()


def programs(compiled, t, **changes):
    made = list(compiled.programs)
    made[t] = replace(made[t], **changes)
    return {"programs": tuple(made)}


WRONG_PROGRAMS = {
    "number of forms and of programs: number 1 is 6, not 7": lambda c: {"programs": c.programs[1:]},
    "whether there is a backward, by type: number 2 is False, not True": lambda c: programs(c, 2, backward=None),
    "pair.* keeps values for a backward that it does not have": lambda c: programs(c, 0, saved=(Spec.of(X),)),
    "weigh.* read operands .7.": lambda c: programs(c, 2, finish_rows=frozenset({7})),
    "pair.* writes gradients of operands .0,. that need none": lambda c: programs(c, 0, scatters=(0,)),
}


@pytest.mark.parametrize("match", WRONG_PROGRAMS)
def test_faults_of_compiled_programs_are_found(match):
    execution, _ = executed()
    compiled, made_of = execution.compiled, (execution.plan, execution.needs)
    compiled.check(*made_of)
    with pytest.raises(AssertionError, match=match):
        replace(compiled, **WRONG_PROGRAMS[match](compiled)).check(*made_of)


def test_compiled_programs_print_shortly():
    execution, _ = executed()
    assert str(execution.compiled) == "Compiled(4 TorchCell, 2 CopyForm, 1 SegmentKernel)"


def test_what_a_stage_was_given_stays(monkeypatch):
    """The test of all tests: a stage that edits a value in place is found."""
    import stage_checks
    from staged import recorded

    def editing(recording, results):
        results.groups[0].refs[0] += 1
        return recording, results

    monkeypatch.setattr(stage_checks, "rewrite", editing)
    with pytest.raises(AssertionError, match="a stage changed what it was given"):
        stage_checks.checked_rewrite(*recorded())
    recording, results = recorded()
    monkeypatch.setattr(stage_checks, "MOST_NODES", 13)
    assert np.array_equal(stage_checks.checked_rewrite(recording, results)[1].groups[0].refs, [4, 10])
