"""What holds for every model: batched as well as possible whatever the shapes, every parameter trained."""

from __future__ import annotations

import pytest
import torch
from model_cases import CASES, Case

import edbatch

every_model = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@every_model
def test_types_do_not_grow_with_sizes(case: Case):
    batched = edbatch.batch(case.make(), stack="cat", policy="bound-greedy")
    names = []
    for size in (3, 8):
        with torch.no_grad():
            batched(case.examples(8, size))
        assert {node_type.reason for node_type in batched.stats.types} == {None}
        names.append({node_type.name for node_type in batched.stats.types})
    assert names[0] == names[1]
    assert len(names[1]) == case.num_types
    ahead = [node_type for node_type in batched.stats.types if node_type.name.endswith(" ahead")]
    assert [node_type.num_batches for node_type in ahead] == [1] * case.num_ahead


@every_model
def test_batched_equals_one_by_one(case: Case):
    edbatch.check(edbatch.batch(case.make(), stack="cat", policy="bound-greedy"), case.examples())


@every_model
def test_every_parameter_gets_a_gradient(case: Case):
    model = case.make()
    sum(model(example)[0] for example in case.examples()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
