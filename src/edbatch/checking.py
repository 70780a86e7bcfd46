"""`edbatch.check` and `edbatch.record`: ways to look at a function without training it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from edbatch.batched import Batched, batch
from edbatch.errors import CheckError
from edbatch.rewriting.rewrite import rewrite
from edbatch.scheduling.graph import Graph
from edbatch.torch_insides import pytree
from edbatch.torch_state.modules import modules_of, parameters_of

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest value of a tensor
COARSE = 3e-2  # 16-bit floats
NEGLIGIBLE = 1e-2  # relative to the largest tensor of its kind: a far smaller one may be only rounding errors


def record(fn: Callable[..., Any], *columns: Any, **keywords: Any) -> Graph:
    """Record a function on a mini-batch and return the graph of its calls, as policies see it; nothing is computed.

    >>> import torch, edbatch
    >>> edbatch.record(torch.nn.Tanh(), [torch.ones(3), torch.ones(3)]).num_nodes
    2
    """
    batched = fn if isinstance(fn, Batched) else batch(fn)
    return rewrite(*batched.pipeline.record_examples(columns, keywords), batched.switches)[0].graph


def check(fn: Callable[..., Any], *columns: Any, **keywords: Any) -> None:
    """Run a function batched and one by one, and compare results and gradients of parameters; raises at the first
    difference.

    Functions that draw random numbers (dropout in training mode) differ by nature: put the model into eval mode first.

    Raises:
        CheckError: names the result or parameter, the example where it can, and both values.
    """
    batched = fn if isinstance(fn, Batched) else batch(fn, stack=False)
    ours = pytree.tree_leaves(batched(*columns, **keywords))
    theirs = pytree.tree_flatten_with_path(batched.one_by_one(*columns, **keywords))[0]
    pairs = [(a, b) for a, (_, b) in zip(ours, theirs, strict=True) if isinstance(b, Tensor)]
    largest: dict[Any, float] = defaultdict(float)  # of one result, over all examples
    leaves_of = [path[1:] if batched.stack is False else path for path, _ in theirs]
    for leaf, (_, b) in zip(leaves_of, theirs, strict=True):
        largest[leaf] = max(largest[leaf], _scale(b) if isinstance(b, Tensor) else 0.0)
    for leaf, a, (path, b) in zip(leaves_of, ours, theirs, strict=True):
        if isinstance(b, Tensor):
            _compare(f"result{pytree.keystr(path)}", a, b, NEGLIGIBLE * largest[leaf])
    recorded = batched.pipeline.record_examples(columns, keywords)[0]
    tensors = [t for node_type in recorded.node_types for t in node_type.shared] + list(recorded.outside)
    root = getattr(batched.fn, "__self__", batched.fn)
    tensors += parameters_of(modules_of([root])) if isinstance(root, nn.Module) else []
    tensors += [c for c in columns if isinstance(c, Tensor)]
    leaves = {id(t): t for t in tensors if t.requires_grad and t.is_leaf}
    named = [(f"the gradient of {batched.pipeline.paths.name_of(t)}", t) for t in leaves.values()]
    wanted = [(a, b) for a, b in pairs if b.requires_grad]
    if any(not a.requires_grad for a, _ in wanted):
        raise CheckError("a result has a gradient one by one, but none batched")
    if not wanted or not named:
        return
    gradients = [_gradients([pair[side] for pair in wanted], [t for _, t in named]) for side in (0, 1)]
    least_scale = NEGLIGIBLE * max(_scale(g) for g in gradients[1])
    for (name, _), a, b in zip(named, *gradients, strict=True):
        _compare(name, a, b, least_scale)


def _gradients(results: list[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """Gradients of the sum of all results, weighted by fixed, uneven numbers."""
    weights = [torch.linspace(0.5, 1.5, r.numel(), dtype=r.dtype, device=r.device).view_as(r) for r in results]
    loss = sum((r * w).sum() for r, w in zip(results, weights, strict=True))
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)  # type: ignore[arg-type]
    return [torch.zeros_like(p) if g is None else g.to_dense() for g, p in zip(grads, parameters, strict=True)]


def _scale(values: Tensor) -> float:
    is_number = values.is_floating_point() and values.numel() > 0
    return float(values.detach().abs().nan_to_num(posinf=0.0).max()) if is_number else 0.0


def _compare(name: str, ours: Any, theirs: Tensor, least_scale: float) -> None:
    if not isinstance(ours, Tensor) or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        raise CheckError(
            f"{name} is {ours if not isinstance(ours, Tensor) else tuple(ours.shape)} batched and "
            f"{tuple(theirs.shape)} one by one"
        )
    if not theirs.is_floating_point():
        same = ours == theirs
    else:
        rtol = TOLERANCE.get(theirs.dtype, COARSE)
        same = torch.isclose(ours, theirs, rtol=rtol, atol=rtol * max(_scale(theirs), least_scale), equal_nan=True)
    if not bool(same.all()):
        at = tuple((~same).nonzero()[0].tolist())
        raise CheckError(
            f"{name} differs at {list(at)}: {ours[at].item()!r} batched, {theirs[at].item()!r} one by one "
            f"({int((~same).sum())} of {same.numel()} entries differ). Functions that draw random numbers, "
            "such as dropout in training mode, differ by nature: put the model into eval mode first. Closures and "
            "globals that cells read, and what a key= freezes, are as they were in the first call"
        )
