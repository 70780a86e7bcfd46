"""`edbatch.batch(fn, key=…)`: a known example is not recorded again, and graphs, values and gradients are the same."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded_once import (
    COUNT,
    STEPS,
    XS,
    Scorer,
    assert_right,
    assert_same_recordings,
    calls_of,
    report,
    scorer,
    two_epochs,
)
from torch.utils import _pytree as pytree

import edbatch
import zoo
from edbatch.errors import BatchError
from edbatch.workloads import WORKLOADS


@pytest.mark.parametrize("case", zoo.CASES, ids=lambda c: c.name)
@pytest.mark.usefixtures("as_recorded")
def test_zoo(case):
    model, columns = zoo.make(case)
    numbers = {id(x): i for i, x in enumerate(columns[-1])}
    two_epochs(model, columns, case.stack, lambda example: numbers[id(example[-1])], case.name != "single ops")


@pytest.mark.parametrize("name", WORKLOADS)
def test_workloads(name):
    corpus = WORKLOADS[name].corpus(None, 0, 6)
    examples = corpus.train[:6]
    two_epochs(WORKLOADS[name].make(corpus, hidden=4), (examples,), "cat", lambda example: id(example[0]))


@settings(max_examples=20)
@given(
    st.sampled_from(
        [c for c in zoo.CASES if c.name in ("shared DAG", "lattice", "tagger", "attention", "twice the same")]
    ),
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True), min_size=1, max_size=4),
)
@pytest.mark.usefixtures("as_recorded")
def test_any_mini_batches(case, batches):
    """Known and unknown examples in any order give the recording of all of them."""
    model, columns = zoo.make(case)
    numbers = {id(x): i for i, x in enumerate(columns[-1])}
    plain = edbatch.batch(model, stack=case.stack)
    known = edbatch.batch(model, stack=case.stack, key=lambda *example: numbers[id(example[-1])])
    for chosen in batches:
        assert_same_recordings(plain, known, tuple([c[i] for i in chosen] for c in columns))


def test_known_and_unknown_examples_in_one_mini_batch():
    _, batched = scorer()
    batched(XS[:2], [1, 3])
    assert calls_of(lambda: batched(XS, STEPS)) == 2
    assert_right(batched, XS, [4, 3, 2, 1])
    assert "4 of 4 examples were known" in report(batched)
    assert "4 of 4 examples were known" in batched.explain()


def test_the_same_example_twice_in_one_mini_batch():
    _, batched = scorer()
    assert calls_of(lambda: batched([XS[1], XS[2], XS[1]], [2, 2, 2])) == 3  # nothing was known when the call began
    assert calls_of(lambda: batched([XS[1], XS[2], XS[1]], [2, 2, 2])) == 0
    assert_right(batched, [XS[1], XS[2], XS[1]], [2, 2, 2])


def test_none_is_recorded_always():
    batched = edbatch.batch(Scorer(), policy="agenda", key=lambda x, steps: None if steps == 2 else steps)
    batched(XS, STEPS)
    assert calls_of(lambda: batched(XS, STEPS)) == 1


# ---- examples that use values of each other


def test_examples_that_use_values_of_another():
    memory = {}

    def function(x, steps):
        COUNT.append(0)
        before, memory["last"] = memory.get("last") if steps % 2 == 0 else None, torch.tanh(x)
        return memory["last"] if before is None else before * 2

    batched, plain = (edbatch.batch(function, policy="agenda", key=k) for k in (lambda x, steps: steps, None))
    batched(XS[:2], [1, 3])  # no example uses another
    ours = batched([XS[3], *XS[:3]], [5, 1, 2, 3])  # 1 is known, but 2 uses its value
    memory.clear()
    torch.testing.assert_close(ours, plain([XS[3], *XS[:3]], [5, 1, 2, 3]))
    assert "leaves values on objects" in report(batched)
    assert calls_of(lambda: batched(XS[:2], [1, 3])) == 2


def test_examples_that_add_to_a_list_of_values():
    """When keys turn out to be of no use, examples are not run again: they would find values of a call that ended."""
    calls, values = [], []

    def function(x, steps):
        calls.append(steps)
        values.append(torch.tanh(x))
        return sum(values)

    batched = edbatch.batch(function, policy="agenda", key=lambda x, steps: steps)
    for _ in range(2):
        calls.clear()
        values.clear()
        ours = batched(XS, STEPS)
        assert calls == STEPS
        torch.testing.assert_close(ours, torch.stack(XS).tanh().cumsum(0))


def test_a_value_of_a_known_example_that_leaked():
    memory = {}

    def function(x, steps):
        if steps % 2:
            memory["last"] = torch.tanh(x)
            return memory["last"]
        return memory["last"] * 2

    batched, plain = (edbatch.batch(function, policy="agenda", key=k) for k in (lambda x, steps: steps, None))
    batched(XS[:1], [1])
    torch.testing.assert_close(batched(XS[:2], [1, 2]), plain(XS[:2], [1, 2]))
    plain(XS[1:2], [1])
    torch.testing.assert_close(batched(XS[:1], [2]), torch.tanh(XS[1])[None] * 2)  # what the call before has left


# ---- results


@pytest.mark.usefixtures("as_recorded")
def test_results_of_other_kinds():
    def function(x, steps):
        COUNT.append(0)
        values = [torch.tanh(x) * i for i in range(steps)]
        total = values[0] + x + x
        return {"rows": torch.stack(values), "number": steps, "plain": torch.full((2,), steps), "sum": total, "x": x}

    for stack in ("cat", False):
        plain, known = (
            edbatch.batch(function, policy="agenda", key=k, stack=stack) for k in (None, lambda x, steps: steps)
        )
        for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
            columns = [XS[i] for i in order], [STEPS[i] for i in order]
            ours, theirs = known(*columns), plain(*columns)
            for a, b in zip(pytree.tree_leaves(ours), pytree.tree_leaves(theirs), strict=True):
                assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
            assert_same_recordings(plain, known, columns)
        assert calls_of(lambda known=known: known(XS, STEPS)) == 0


def test_a_leaf_that_is_a_value_for_some_and_a_tensor_for_others():
    constant = torch.ones(3)
    plain, known = (
        edbatch.batch(lambda x, steps: torch.tanh(x) if steps % 2 else constant, policy="agenda", key=k)
        for k in (None, lambda x, steps: steps)
    )
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        columns = [XS[i] for i in order], [STEPS[i] for i in order]
        assert_same_recordings(plain, known, columns)
        assert torch.equal(plain(*columns), known(*columns))


def test_results_do_not_share_memory():
    batched = edbatch.batch(lambda i: torch.zeros(2), policy="agenda", key=lambda i: i, stack=False)
    for _ in range(3):
        (result,) = batched([1])
        assert result.tolist() == [0, 0]
        result += 1


def test_other_structures_are_refused():
    batched = edbatch.batch(lambda x, i: (x,) * i, policy="agenda", key=lambda x, i: i)
    batched(XS[:1], [1])
    batched(XS[:1], [2])
    with pytest.raises(BatchError, match="example 1 returned another structure"):
        batched(XS[:2], [1, 2])


def test_what_is_returned_as_an_object_is_recorded_always():
    batched = edbatch.batch(lambda x: (x, object()), policy="agenda", key=lambda x: 0)
    batched([XS[0]])
    batched([XS[0]])
    assert "it returns something of type object" in report(batched)
