"""The oracle: a cell's function called on each row by itself, under torch's own autograd; and a runtime in
miniature."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch.utils import _pytree as pytree

from edbatch.cells.compiled import compile_cell
from edbatch.spec import Spec

SPLIT = (1, 5)  # rows 0 and 1..4: two batches of different sizes


def tensors(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def columns(examples):
    return [torch.stack([example[i] for example in examples]) for i in range(len(examples[0]))]


def compiled(function, examples, shared=()):
    return compile_cell(function, tuple(map(Spec.of, examples[0])), tuple(map(Spec.of, shared)), name="cell")


def can_train(cell):
    """Per shared input of a compiled cell: can a gradient flow to it?"""
    return tuple(g is not None for g in cell.body.shared_grads)


def batches(values, start, stop):
    return [None if v is None else v[start:stop] for v in values]


def pieces(count):
    edges = (0, *(e for e in SPLIT if e < count), count)
    return list(pairwise(edges))


def launch(program, size, rows, *others, pro):
    """Runs a program on one batch, as `bind` does it: what it wants in its work space is put there."""
    if not hasattr(program, "emitted"):
        return program.function(size, rows, *others)
    work = program.emitted.work
    loan = work.lend(size + 1)
    views = loan.space(size)
    loan.space.memory.fill_(float("nan"))  # nothing is read that was not written
    for slot, view in work.placed:
        views[view].copy_(rows[slot])
    rows = [None if row is None or slot in dict(work.placed) else row for slot, row in enumerate(rows)]
    found = program.emitted.function(size, rows, *others, views, pro.stacked(work.stacks))
    return found and tuple(None if gradient is None else gradient.clone() for gradient in found)


def run_infer(cell, rows, shared):
    """Outputs, as torch ops."""
    count, form = len(rows[0]), cell.torch_ops
    pro, outs = form.prologue(shared), [spec.empty(count) for spec in cell.outputs]
    for a, b in pieces(count):
        launch(form.infer.forward, b - a, batches(rows, a, b), pro, batches(outs, a, b), [], pro=pro)
    return outs


def run_training(cell, training, rows, shared, out_grads):
    """Outputs, row gradients and shared gradients, batch by batch as the runtime does it; unread operands are
    withheld."""
    count = len(rows[0])
    pro, outs = cell.torch_ops.prologue(shared), [spec.empty(count) for spec in cell.outputs]
    saved, deferred = ([spec.empty(count) for spec in specs] for specs in (training.saved, training.deferred))
    for a, b in pieces(count):
        launch(training.forward, b - a, batches(rows, a, b), pro, batches(outs, a, b), batches(saved, a, b), pro=pro)
    sums, found = {}, []
    backward, finish = training.split.backward, training.split.finish
    for a, b in reversed(pieces(count)):
        again, results = withheld(rows, training.backward.rows), withheld(outs, training.backward.outs)
        grads = withheld(out_grads, backward.reads("out_grads", len(outs)))
        found.insert(0, launch(
            training.backward, b - a, batches(again, a, b), batches(results, a, b), batches(saved, a, b), pro,
            batches(grads, a, b), batches(deferred, a, b), sums, pro=pro,
        ))  # fmt: skip
    row_grads = [None if parts[0] is None else torch.cat(parts) for parts in zip(*found, strict=True)]
    again = [r if i in training.finish_rows else None for i, r in enumerate(rows)]
    results = withheld(outs, finish.reads("outs", len(outs)))
    return outs, row_grads, training.finish(count, again, results, saved, pro, out_grads, deferred, sums)


def withheld(values, are_read):
    return [value if is_read else None for value, is_read in zip(values, are_read, strict=True)]


def autograd(function, examples, shared, wanted, out_grads):
    """Outputs [N, ...] per leaf, and the gradients of rows (stacked) and of `wanted` tensors."""
    leaves = [[x.clone().requires_grad_(x.is_floating_point()) for x in example] for example in examples]
    results = [tensors(function(*example, *shared)) for example in leaves]
    terms = [
        (r * g[i]).sum() for i, row in enumerate(results)
        for r, g in zip(row, out_grads, strict=True) if g is not None and r.requires_grad
    ]  # fmt: skip
    inputs = [x for example in leaves for x in example if x.requires_grad] + [w for w in wanted if w.requires_grad]
    grads = torch.autograd.grad(sum(terms), inputs, allow_unused=True) if terms and inputs else [None] * len(inputs)
    grad_of = {id(t): g for t, g in zip(inputs, grads, strict=True)}

    def gradient(tensor):
        grad = grad_of.get(id(tensor))
        return torch.zeros_like(tensor) if grad is None else grad.to_dense() if grad.is_sparse else grad

    outs = [torch.stack([row[k] for row in results]).detach() for k in range(len(results[0]))]
    rows = [torch.stack([gradient(example[i]) for example in leaves]) for i in range(len(leaves[0]))]
    return outs, rows, [gradient(w) for w in wanted]


def close(ours, theirs, tolerance):
    for a, b in zip(ours, theirs, strict=True):
        a = torch.zeros_like(b) if a is None else a.to_dense() if a.is_sparse else a
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


def assert_equal(function, examples, shared=(), tolerance=1e-9, masks=None):
    """Compiles, runs inference and training, compares with one by one; returns the cell and its training.

    Args:
        masks: (need_rows, need_shared, need_outs), to ask for some of the gradients only.
    """
    cell = compiled(function, examples, shared)
    cell.body.check()
    rows, given = columns(examples), [*shared, *cell.enclosed]
    floats = tuple(spec.is_float for spec in cell.outputs)
    need_rows, need_shared, need_outs = masks or (tuple(x.is_floating_point() for x in rows), can_train(cell), floats)
    out_grads = [
        torch.randn(len(examples), *spec.shape, dtype=spec.dtype) if need and spec.is_float else None
        for spec, need in zip(cell.outputs, need_outs, strict=True)
    ]
    outs, row_grads, shared_grads = autograd(function, examples, shared, given, out_grads)
    close(run_infer(cell, rows, given), outs, tolerance)
    with torch.inference_mode():
        close(run_infer(cell, rows, given), outs, tolerance)
    training = cell.torch_ops.training(need_rows, need_shared, need_outs)
    ours = run_training(cell, training, rows, given, out_grads)
    close(ours[0], outs, tolerance)
    for found, wanted, need in ((ours[1], row_grads, need_rows), (ours[2], shared_grads, need_shared)):
        assert all(f is None for f, n in zip(found, need, strict=True) if not n)
        chosen = [(f, w) for f, w, n in zip(found, wanted, need, strict=True) if n]
        close([f for f, _ in chosen], [w for _, w in chosen], tolerance)
    return cell, training
