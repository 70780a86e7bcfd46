"""Types that keep growing in number from call to call are noticed, with the reason."""

import warnings
from itertools import count

import pytest
import torch

import edbatch
from edbatch.recording.types.growth import CALLS, Growth

X = torch.randn(2, 3)


def growing(function, calls=CALLS, x=X):
    batched = edbatch.batch(function)
    for _ in range(calls):
        batched(x if isinstance(x, torch.Tensor) else next(x))
    return batched


def test_functions_that_are_made_anew():
    with pytest.warns(RuntimeWarning, match=f"last {CALLS} calls .* identity of a module, function or object: make it"):
        batched = growing(lambda x: edbatch.cell(lambda y: y.tanh())(x))
    assert "make it once, outside of the batched function" in batched.explain()


def test_numbers_that_belong_to_the_type():
    numbers = count()
    with pytest.warns(RuntimeWarning, match=r"like Tensor.clamp\(f32\[3\], min=.* give them as tensors"):
        growing(lambda x: x.clamp(min=next(numbers)))


def test_sizes():
    sizes = iter(torch.randn(1, n) for n in range(1, 100))
    with pytest.warns(RuntimeWarning, match=r"They differ in sizes: torch.stack gives rows"):
        growing(lambda x: x.tanh().sum(), x=sizes)


def test_the_warning_comes_once_and_the_report_ends_with_the_growth():
    functions = [lambda y, n=n: y * n for n in range(50)]
    numbers = iter([*range(2 * CALLS), *[0] * 50])
    batched = edbatch.batch(lambda x: edbatch.cell(functions[next(numbers)])(x))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(CALLS):
            batched(X[:1])
        assert len(caught) == 1
        for _ in range(CALLS):
            batched(X[:1])
        assert len(caught) == 1
    assert "types of nodes that no call before had" in batched.explain()


def test_what_grows_no_more_is_not_reported():
    growth = Growth()
    for _ in range(CALLS - 1):
        growth.note("f(f32[3])")
        assert growth.end_call() is None
    assert growth.end_call() is growth.report() is None
    growth.note("f(f32[3])")
    assert growth.end_call() is None


def test_the_most_frequent_is_named():
    growth = Growth()
    for n in range(CALLS):
        growth.note(f"clamp(f32[3], min={n})")
        growth.note(f"clamp(f32[3], min={n}.5)")
        if n == 3:
            growth.note("g(f32[3])")
        report = growth.end_call()
    assert f"{2 * CALLS + 1} in all" in report
    assert f"{2 * CALLS} are like clamp(f32[3], min={CALLS - 1}.5)" in report
