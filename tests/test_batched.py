"""`Batched` shares the parameters of a model and changes nothing of it."""

import copy
import pickle

import pytest
import torch
from torch import nn

import edbatch

OURS = ["fn", "policy", "stack", "switches", "key", "debug", "stats", "_pipeline", "pipeline", "explain", "one_by_one",
        "cell_plans", "forward_", "_loop"]  # fmt: skip


def parameter():
    return nn.Parameter(torch.ones(3))


class Model(nn.Module):
    """A model with something registered under a name."""

    def __init__(self, name, kind):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.name = name
        if kind == "buffer":
            self.register_buffer(name, torch.ones(3))
        else:
            setattr(self, name, nn.Linear(3, 3) if kind == "module" else parameter())

    def forward(self, x):
        own = getattr(self, self.name)
        return self.linear(own(x) if isinstance(own, nn.Module) else own * x)


@pytest.mark.parametrize("kind", ["module", "parameter", "buffer"])
@pytest.mark.parametrize("name", OURS)
def test_every_name_can_be_that_of_a_part_of_the_model(name, kind):
    model = Model(name, kind)
    untouched, attributes = copy.deepcopy(model), set(vars(model))
    batched, x = edbatch.batch(model), torch.randn(4, 3)
    torch.testing.assert_close(batched(x), torch.stack([untouched(v) for v in x]))
    batched.stats, batched.policy, batched.debug = None, edbatch.policies.Depth(), False
    torch.testing.assert_close(batched(x), torch.stack([untouched(v) for v in x]))
    assert list(model.state_dict()) == list(untouched.state_dict()) == list(batched.state_dict())
    assert set(vars(model)) == attributes
    assert isinstance(getattr(model, name), type(getattr(untouched, name)))
    copied = copy.deepcopy(batched)
    assert list(copied.state_dict()) == list(untouched.state_dict())
    assert "batches" in batched.explain()


def test_a_copy_of_a_batched_model_shares_nothing():
    batched = edbatch.batch(nn.Linear(3, 3))
    copies = copy.deepcopy(batched), pickle.loads(pickle.dumps(batched))
    for other in copies:
        assert other.weight is not batched.weight
        assert other.fn.weight is other.weight
