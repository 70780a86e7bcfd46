"""Mini-batches hold every example once; ranks get equal work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edbatch.workloads.sampler import mini_batches, shares


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 5), st.integers(0, 5))
def test_an_epoch_has_every_example_once_in_even_mini_batches(num_examples, batch_size, seed, epoch):
    plan = mini_batches(num_examples, batch_size, seed, epoch)
    sizes = [len(indices) for indices in plan]
    assert sorted(i for indices in plan for i in indices) == list(range(num_examples))
    assert len(plan) == -(-num_examples // batch_size)
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {tuple(mini_batches(50, 50, seed, epoch)[0]) for seed in range(3) for epoch in range(3)}
    assert len(orders) == 9


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 6))
def test_shares(num_steps, num_ranks):
    """Each example has one owner, and no rank has more than the least busy one by more than one example."""
    indices = list(range(len(num_steps)))
    owned = shares(indices, num_steps, num_ranks)
    assert sorted(i for share in owned for i in share) == indices
    assert len(owned) == num_ranks
    work = [sum(num_steps[i] for i in share) for share in owned]
    assert max(work) - min(work) <= max(num_steps)
    if len(indices) >= num_ranks:
        assert all(owned)


def test_nodes_are_balanced_and_not_examples():
    num_steps = [100, *[10] * 10]
    assert shares(range(11), num_steps, 2) == [[0], list(range(1, 11))]
