"""torch.compile around a batched function, and inside it: the values and gradients of plain torch."""

import pytest
import torch
from torch import nn

import edbatch
from edbatch.torch_state.outside_compile import _Compiling
from like_torch import like_torch

pytestmark = pytest.mark.filterwarnings("ignore")  # the compiler's own

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def compiled(function):
    return torch.compile(function, backend="eager")


def compiled_in_place(module):
    module.compile(backend="eager")
    return module


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(3, 3), nn.Parameter(torch.randn(3))

    def forward(self, x):
        return self.linear(x).tanh() * self.scale


class Model(nn.Module):
    def __init__(self, sub):
        super().__init__()
        self.sub = sub

    def forward(self, x):
        return self.sub(x) * 2 + self.sub(-x)


@pytest.fixture(autouse=True)
def _fresh():
    yield
    torch._dynamo.reset()


def check(call, function, parameters):
    """Compare what `call` gives of all examples with a loop over a function of one."""
    for _ in range(2):
        ours, theirs = call(X), torch.stack([function(x) for x in X])
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(*(torch.autograd.grad(r.square().sum(), parameters) for r in (ours, theirs)), strict=True):
            torch.testing.assert_close(a, b)


def test_a_batched_function_is_compiled():
    model = Model(Scaled())
    for batched in (compiled(edbatch.batch(model)), compiled_in_place(edbatch.batch(model))):
        check(batched, model, list(model.parameters()))
    batched = edbatch.batch(lambda x: model(x).exp())
    check(compiled(lambda x: batched(x) + 1), lambda x: model(x).exp() + 1, list(model.parameters()))


def test_a_training_step_is_compiled():
    model = Model(Scaled())
    batched = edbatch.batch(model)

    @compiled
    def step(x):
        loss = batched(x).square().sum()
        loss.backward()
        return loss

    for _ in range(2):
        model.zero_grad()
        step(X)
        theirs = torch.autograd.grad(sum(model(x).square().sum() for x in X), list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), theirs, strict=True):
            torch.testing.assert_close(parameter.grad, gradient)


@pytest.mark.parametrize("how", [compiled, compiled_in_place])
@pytest.mark.parametrize("sub", [Scaled, lambda: nn.Linear(3, 3), lambda: edbatch.cell(Scaled())])
def test_a_part_of_a_model_is_compiled(how, sub):
    model = Model(how(sub()))
    plain = Model(getattr(model.sub, "_orig_mod", model.sub))
    like_torch(edbatch.batch(model).fn, X, parameters=list(plain.parameters()))
    like_torch(edbatch.cell(Model(how(sub()))), X)


def test_functions_are_compiled():
    linear = nn.Linear(3, 3)
    function = compiled(lambda x: linear(x).tanh() * 2)
    for model in (function, lambda x: function(x * 2) + 1, edbatch.cell(lambda x: function(x) + 1)):
        like_torch(model, X, parameters=list(linear.parameters()))


def test_the_compiler_is_as_before_after_a_call():
    traced = []

    def backend(graph, example_inputs):
        traced.append(graph)
        return graph.forward

    function = torch.compile(lambda x: x.tanh() * 2, backend=backend)
    batched = edbatch.batch(lambda x: function(x) + 1)
    batched(X)
    with pytest.raises(RuntimeError, match="size"):
        edbatch.batch(lambda x: function(x) + torch.ones(2))(X)
    assert not traced
    function(X)
    assert len(traced) == 1


def test_calls_that_overlap_leave_the_compiler_as_it_was():
    import torch._dynamo.eval_frame

    before = torch._dynamo.eval_frame._stance
    first, second = _Compiling(), _Compiling()
    for call in (first, second):
        call.__enter__()
        call.begin()
    first.__exit__()
    assert torch._dynamo.eval_frame._stance.stance == "force_eager"
    first.__exit__()  # once more: nothing happens
    second.__exit__()
    assert torch._dynamo.eval_frame._stance is before
