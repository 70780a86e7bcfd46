"""A batched function against a plain loop: the same values, the same gradients, or an error where torch has one."""

import torch
from torch.utils import _pytree as pytree

import edbatch


def like_torch(function, *columns, parameters=(), backward=True, **options):
    """Compare `edbatch.batch(function)` with a loop over examples; gradients of columns and parameters by a fixed
    loss. Options are those of `edbatch.batch`; with a key there are two calls, of which the second knows examples."""
    given = [*parameters, *[c for c in pytree.tree_leaves(columns) if isinstance(c, torch.Tensor)]]
    wanted = [t for t in given if t.requires_grad]
    theirs, their_gradients = _run(lambda *c: [function(*e) for e in zip(*c, strict=True)], columns, wanted, backward)
    batched = edbatch.batch(function, stack=False, **options)
    for _ in range(2 if options.get("key") else 1):
        ours, our_gradients = _run(batched, columns, wanted, backward)
        _compare(ours, our_gradients, theirs, their_gradients)
    return batched


def like_torch_with_key(function, *columns, others, parameters=()):
    """`like_torch` without a key, and with one by which the examples of other columns are found, too."""
    like_torch(function, *columns, parameters=parameters)
    batched = like_torch(function, *columns, parameters=parameters, key=_shapes)
    for given in (others, columns):
        theirs = [function(*e) for e in zip(*given, strict=True)]
        for a, b in zip(pytree.tree_leaves(list(batched(*given))), pytree.tree_leaves(theirs), strict=True):
            _same(a, b)
    return batched


def _shapes(*example):
    return tuple(x.shape for x in example)


def _compare(ours, our_gradients, theirs, their_gradients):
    assert pytree.tree_structure(list(ours)) == pytree.tree_structure(theirs)
    for a, b in zip(pytree.tree_leaves(list(ours)), pytree.tree_leaves(theirs), strict=True):
        _same(a, b)
        is_view_without_grad = b._is_view() and b.grad_fn is None  # made under no_grad, of something that has one
        assert a.requires_grad == (b.requires_grad and not is_view_without_grad)
    for a, b in zip(our_gradients, their_gradients, strict=True):
        _same(a, b)


def _run(function, columns, wanted, backward):
    results = function(*columns)
    leaves = [r for r in pytree.tree_leaves(results) if r.requires_grad]
    if not leaves or not wanted or not backward:
        return results, [torch.zeros_like(t) for t in wanted]
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype).view(r.shape) for r in leaves]
    loss = sum((r * w).sum() for r, w in zip(leaves, weights, strict=True))
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    return results, [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, wanted, strict=True)]


def _same(ours, theirs):
    coarse = theirs.dtype in (torch.bfloat16, torch.float16)
    torch.testing.assert_close(ours, theirs, equal_nan=True, **({"rtol": 2e-2, "atol": 2e-2} if coarse else {}))
