"""Libraries and parts of torch that call past torch's functions: they work, or are refused with what to do instead."""

import pytest
import torch
from torch import nn
from torch.autograd import Variable
from torch.distributions import Bernoulli, Categorical, Distribution, MultivariateNormal, Normal, kl_divergence
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import edbatch
from edbatch.errors import RecordingError
from like_torch import like_torch

WEIGHT = nn.Parameter(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))
LINEAR = nn.Linear(3, 3, dtype=torch.float64)
ROWS = [torch.randn(n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (2, 3, 2)]


@pytest.fixture(autouse=True)
def _validating():
    before = Distribution._validate_args
    Distribution.set_default_validate_args(True)
    yield
    Distribution.set_default_validate_args(before)


def columns():
    return [x.clone().requires_grad_() for x in ROWS]


def distributions(x):
    h = x @ WEIGHT
    normal, categorical = Normal(h, F.softplus(h)), Categorical(logits=h)
    many = MultivariateNormal(h[0], torch.eye(3, dtype=torch.float64))
    return (
        normal.log_prob(x).sum(), categorical.entropy().sum(), categorical.log_prob(torch.tensor(1)).sum(),
        kl_divergence(normal, Normal(0.0, 1.0)).sum(), Bernoulli(logits=h).log_prob(torch.ones_like(h)).sum(),
        many.log_prob(x[0]), torch.tensor(normal.rsample().shape[-1]),
    )  # fmt: skip


def mapped(x):
    return torch.vmap(lambda row: torch.tanh(row * 2).sum())(x @ WEIGHT).sum()


def mapped_over_one_of_two(x):
    return torch.vmap(lambda row, weight: torch.tanh(weight @ row), in_dims=(0, None))(x @ WEIGHT, WEIGHT).sum(0)


def mapped_cell(x):
    return edbatch.cell(mapped)(x)


def checkpointed(x):
    return checkpoint(lambda a: torch.tanh(LINEAR(a)), x[0] @ WEIGHT, use_reentrant=False)


def compiled_inside(x):
    return torch.compile(lambda a: torch.tanh(a) * 2, backend="eager")(x[0] @ WEIGHT)


@pytest.mark.parametrize(
    "function", [distributions, mapped, mapped_over_one_of_two, mapped_cell, checkpointed, compiled_inside]
)
@pytest.mark.parametrize("key", [None, lambda x: str(x.tolist())])
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # in torch's own compiler
def test_calls_of_others_are_like_torch(function, key):
    like_torch(function, columns(), parameters=[WEIGHT, *LINEAR.parameters()], key=key)


def test_why_a_mapped_function_runs_alone():
    with torch.no_grad():
        for function in (mapped, mapped_cell):
            batched = like_torch(function, ROWS)
            assert "a transform of torch.func, such as vmap" in batched.explain()


def test_functions_under_vmap_that_are_made_anew_are_of_one_type():
    batched = edbatch.batch(mapped)
    batched([ROWS[0], ROWS[2]])
    assert batched.stats.num_types == 3
    with pytest.raises(RecordingError, match="give it as an argument, with in_dims=None"):
        edbatch.batch(lambda x: (lambda h: torch.vmap(lambda row: row * h)(x * 2))(x[0] * 3))(ROWS)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript():
    @torch.jit.script
    def scripted(a, b):
        return torch.tanh(a) * b

    model = torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.Tanh()).double())
    traced = torch.jit.trace(LINEAR, torch.ones(3, dtype=torch.float64))
    like_torch(lambda x: scripted(x @ WEIGHT, x).sum(0), columns(), parameters=[WEIGHT])
    batched = like_torch(lambda x: traced(model(x[0] @ WEIGHT)), columns(), parameters=[WEIGHT, *model.parameters()])
    assert "TorchScript runs its methods by itself" in batched.explain()
    assert batched.stats.num_types == 5


def test_einops():
    einops = pytest.importorskip("einops")

    def function(x):
        h = x @ WEIGHT
        return (
            einops.rearrange(h, "a b -> (a b)").sum(), einops.reduce(h, "a b -> b", "mean"),
            einops.repeat(h[0], "b -> n b", n=2), einops.einsum(h, WEIGHT, "a b, b c -> a c").sum(0),
            einops.rearrange([h[0], h[1]], "a b -> b a"), einops.pack([h[0], h[1, 0]], "*")[0],
        )  # fmt: skip

    like_torch(function, columns(), parameters=[WEIGHT])


@pytest.mark.parametrize("function", [
    lambda x: Normal(x @ WEIGHT, -(x @ WEIGHT).abs() - 1).mean.sum(),
    lambda x: Bernoulli(torch.sigmoid(x @ WEIGHT)).log_prob(x @ WEIGHT).sum(),
])  # fmt: skip
@pytest.mark.parametrize("key", [None, len])
def test_invalid_parameters_of_distributions_are_found_when_the_call_ends(function, key):
    with pytest.raises(ValueError, match="invalid parameters or values in example 0"):
        edbatch.batch(function, key=key)(ROWS)
    with pytest.raises(ValueError, match="Expected parameter scale"):
        edbatch.batch(lambda x: Normal(x, x - x.max()).mean.sum())(ROWS)


def test_what_is_checked_is_always_recorded():
    batched = edbatch.batch(lambda x: Normal(x @ WEIGHT, 1.0).log_prob(x).sum(), key=len)
    for _ in range(2):
        batched([ROWS[0], ROWS[1]])
    assert "validate_args=False does not" in batched.explain()


def test_variables_are_refused():
    with pytest.raises(RecordingError, match="leave Variable out"):
        edbatch.batch(lambda x: Variable(x @ WEIGHT))(ROWS)


def test_a_batched_function_is_left_out_by_torch_compile():
    batched = edbatch.batch(lambda x: torch.tanh(x @ WEIGHT).sum())
    torch.testing.assert_close(torch.compile(batched, backend="eager")(ROWS), batched(ROWS))
