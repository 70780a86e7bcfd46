"""What lazy values answer, and what they refuse to answer."""

import pytest
import torch
from torch import nn

import edbatch
from edbatch.errors import LeakedValueError, RecordingError, ValueReadError
from edbatch.recording.values import lazy

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


WEIGHT = nn.Parameter(torch.ones(3))


def ask(question, column=X):
    """What a question about values of different kinds gives while a function is recorded."""
    answers = []

    def function(x):
        answers.append(question(x))
        return x * 1

    edbatch.batch(function)(column)
    return answers[0]


@pytest.mark.parametrize("how", [
    lambda h: torch.equal(h, h), lambda h: h.equal(h), lambda h: torch.allclose(h, h * 2), lambda h: h.allclose(h),
    lambda h: h.sum().is_nonzero(), lambda h: torch.is_nonzero(h[0]), lambda h: h.tolist(), lambda h: h.sum().item(),
    lambda h: torch.Tensor.tolist(torch.stack([h, h])[0]), lambda h: 0.5 in h,
])  # fmt: skip
def test_values_are_not_read(how):
    with pytest.raises((ValueReadError, TypeError), match=r"was read|doesn't apply"):
        ask(lambda x: how(x * WEIGHT))


READINGS = [lambda h: h.item(), bool, int, lambda h: h.tolist(), lambda h: torch.equal(h, h), lambda h: h + 1]


@pytest.mark.parametrize("read", READINGS)
def test_after_a_recording_that_failed_a_lazy_value_has_leaked(read):
    kept = []

    def function(x):
        kept.append(x.sum())
        raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        edbatch.batch(function)(X)
    for _ in range(2):
        with pytest.raises(LeakedValueError, match="outside the call"):
            read(kept[0])


def test_lazy_values_are_tensors():
    assert ask(torch.is_tensor)
    assert ask(lambda x: isinstance(x * 2, torch.Tensor))
    assert ask(lambda x: isinstance(torch.stack([x, x]), torch.Tensor))
    assert ask(lambda x: not isinstance(x, nn.Parameter))
    assert ask(lambda x: type(x).__name__) == "Lazy"
    assert ask(lambda x: (x == None, x != None)) == (False, True)  # noqa: E711


def test_what_follows_from_shape_and_dtype_is_answered():
    def describe(h):
        return (
            h.numel(), h.nelement(), h.element_size(), h.ndimension(), h.is_floating_point(), h.is_complex(), h.type(),
            h.is_cuda, h.layout, h.itemsize, h.nbytes, h.size(), h.size(-1), h.dim(), torch.numel(h), h.is_signed(),
            torch.is_floating_point(h), torch.result_type(h, 1), h.get_device(), h.is_same_size(h),
        )  # fmt: skip

    for change in (lambda h: h, lambda h: (h * 2)[:2], lambda h: h > 0, lambda h: torch.stack([h, h, h])):
        assert ask(lambda x, change=change: describe(change(x))) == describe(change(X[0]))


def grads(h):
    return h.requires_grad, h.is_leaf


@pytest.mark.parametrize("change", [
    lambda h: h, lambda h: h * 2, lambda h: h * WEIGHT, lambda h: (h * WEIGHT).detach(), lambda h: h + h,
    lambda h: torch.stack([h, h * 2]), lambda h: torch.stack([h, h * WEIGHT]).sum(0), lambda h: (h * WEIGHT).argmax(),
    torch.no_grad()(lambda h: h * WEIGHT), lambda h: torch.stack([h, h]).tanh(), lambda h: (h * WEIGHT).round(),
])  # fmt: skip
@pytest.mark.parametrize("given", [X, X.clone().requires_grad_()])
def test_whether_gradients_are_required_is_answered(change, given):
    expected = grads(change(given.detach()[0].requires_grad_(given.requires_grad)))
    found = ask(lambda x: grads(change(x)), [row.requires_grad_(given.requires_grad) for row in given.detach().clone()])
    assert found == expected
    with torch.no_grad():
        assert ask(lambda x: (change(x) * 1).requires_grad, given) is False


OF_MEMORY = ["stride", "is_contiguous", "data_ptr", "storage_offset", "untyped_storage", "is_inference", "is_pinned"]


@pytest.mark.parametrize("name", OF_MEMORY)
def test_where_values_lie_is_known_of_tensors_from_outside_alone(name):
    with pytest.raises(RecordingError, match=f"{name}.* asks where and how"):
        ask(lambda x: getattr(x * 2, name)())
    columns = [torch.randn(3, 2).t() for _ in range(2)]
    if name != "untyped_storage":
        assert ask(lambda x: getattr(x, name)(), columns) == getattr(columns[0], name)()


def test_tensors_from_outside_are_compared_by_their_memory():
    assert ask(lambda x: (x.is_set_to(x), x.is_set_to(X[1]), torch.is_conj(input=x))) == (True, False, False)


@pytest.mark.parametrize("use", [
    lambda h: h.register_hook(print), lambda h: h.retain_grad(), lambda h: h.as_strided((1,), (1,)),
    lambda h: torch.as_strided(h, (1,), (1,)), lambda h: torch.as_strided(input=h, size=(1,), stride=(1,)),
    lambda h: torch.is_conj(input=h), lambda h: X.is_set_to(h), lambda h: (h * WEIGHT).grad_fn,
    lambda h: h.requires_grad_(), lambda h: (h * WEIGHT).requires_grad_(False),
    lambda h: (h * WEIGHT).register_hook(print),
])  # fmt: skip
def test_what_cannot_be_known_is_refused(use):
    with pytest.raises(RecordingError):
        ask(lambda x: use(x * 2))


def test_requires_grad_where_it_changes_nothing():
    assert ask(lambda x: (x * WEIGHT).requires_grad_().requires_grad)
    assert not ask(lambda x: x.requires_grad_(False).requires_grad)
    assert ask(lambda x: (x * 2).grad_fn) is None
    assert ask(lambda x: (x * WEIGHT).grad) is None
    given = X.clone().requires_grad_()
    given.sum().backward()
    torch.testing.assert_close(ask(lambda x: x.grad, [given]), given.grad)


@pytest.mark.parametrize("write", [
    lambda h: h.random_(), lambda h: h.resize_(2), lambda h: h.set_(h), lambda h: h.log_normal_(),
])  # fmt: skip
def test_methods_that_have_no_other_form_are_refused(write):
    with pytest.raises(RecordingError, match="no function that gives the same as a new value"):
        ask(lambda x: write(x * 2))


def doubles(x):
    h = x * WEIGHT
    if h.requires_grad:
        h.register_hook(lambda g: 2 * g)
    return h * 3


def test_hooks_on_values_inside_a_cell_see_their_gradients():
    batched = edbatch.batch(edbatch.cell(doubles))
    for result in (batched(X), torch.stack([doubles(x) for x in X])):
        (gradient,) = torch.autograd.grad(result.sum(), WEIGHT)
        torch.testing.assert_close(gradient, 6 * X.sum(0))


def test_hooks_on_what_is_computed_of_parameters_alone_are_refused():
    def function(x):
        scale = WEIGHT * 2
        scale.register_hook(lambda g: 2 * g)
        return x * scale

    with pytest.raises(RecordingError, match="put the hook on the parameter"):
        edbatch.batch(function)(X)


def begun(x):
    """As a zero state that is made to require a gradient, which nobody sees."""
    state = x.detach().new(1, 3).fill_(0.0).requires_grad_()
    for _ in range(2):
        state = torch.tanh(state + x * WEIGHT)
    return state


@pytest.mark.parametrize("key", [None, id])
def test_what_an_example_made_may_be_told_to_require_gradients(key):
    xs = list(X.double())
    batched = edbatch.batch(begun, key=key, stack=False)
    for _ in range(2):
        ours = batched(xs)
        torch.testing.assert_close(ours, [begun(x) for x in xs])
        (gradient,) = torch.autograd.grad(sum(map(torch.sum, ours)), WEIGHT)
        torch.testing.assert_close(gradient, torch.autograd.grad(sum(begun(x).sum() for x in xs), WEIGHT)[0])


def test_what_was_told_to_require_gradients_says_so_from_then_on():
    def answers(x):
        before = x * 2
        same = before.requires_grad_(False)
        earlier = torch.tanh(before)
        own = before.requires_grad_()
        assert same is before
        assert own is before
        later = torch.tanh(own)
        return [
            [v.requires_grad for v in (own, earlier, later, later.detach(), later + 1)],
            [v.is_leaf for v in (own, earlier, later)],
            own.grad_fn,
            own.grad,
        ]

    assert ask(answers) == answers(X[0]) == [[True, False, True, False, True], [True, True, False], None, None]


def keeps(x, kept=[]):  # noqa: B006
    kept.append((x * 2).requires_grad_())
    return kept[-1] * WEIGHT


@pytest.mark.parametrize(
    "function", [lambda x: (x * 2).requires_grad_(), lambda x: [x, {"h": torch.zeros_like(x).requires_grad_()}], keeps]
)
@pytest.mark.parametrize("key", [None, id])
def test_what_was_told_to_require_gradients_is_not_handed_out(function, key):
    if function is keeps and not lazy.ARE_TENSORS:
        pytest.skip("needs the C part")
    with pytest.raises(RecordingError, match=r"its \.grad will not be there"):
        edbatch.batch(function, stack=False, key=key)(list(X))


@pytest.mark.parametrize("value", [
    lambda x: x, lambda x: (x * WEIGHT).requires_grad_(False), lambda x: x.long() + 1,
    lambda x: torch.stack([x, x * 2, x]),
])  # fmt: skip
def test_other_values_are_not_told_to_require_gradients(value):
    with pytest.raises(RecordingError, match="which values have gradients follows from the parameters"):
        ask(lambda x: value(x).requires_grad_())


class Constant(nn.Module):
    def forward(self, x):
        return x * 2, x.sum().item() > 0


def test_a_cell_that_returns_what_it_read_is_refused():
    with pytest.raises(edbatch.EdbatchError, match="besides tensors that depends on values"):
        edbatch.batch(edbatch.cell(Constant()))(torch.tensor([[1.0], [-1.0]]))


def test_a_cell_that_returns_a_lazy_value_of_its_closure_is_refused():
    def function(x):
        h = x * 2
        return edbatch.cell(lambda y: (y, h))(x)[1]

    with pytest.raises(RecordingError, match="pass it as an argument"):
        edbatch.batch(function)(X)


@pytest.mark.skipif(not lazy.ARE_TENSORS, reason="without the C part lazy values are no tensors to isinstance")
@pytest.mark.parametrize("use", [
    lambda h: torch.full((2,), h[0]), lambda h: torch.arange(h[0].long()), lambda h: torch.add(X[0], h, alpha=h[0]),
    lambda h: torch._C._functorch.get_unwrapped(h), torch.Tensor,
    lambda h: torch.func.grad(torch.sum)(h), torch.autograd.backward,
])  # fmt: skip
def test_code_in_c_that_takes_a_lazy_value_for_a_tensor_finds_none(use):
    """It would read foreign memory if lazy values did not begin as torch's own objects do."""
    with pytest.raises(
        Exception, match=r"must be Number|undefined|Lazy|inside the batched|INTERNAL|No wrappers|new\(\)"
    ):
        ask(lambda x: use(x * 2))
