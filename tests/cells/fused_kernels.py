"""What tests of fused kernels share: rows to run cells on, the kernels of a call, comparison with one by one."""

import torch
from torch import nn
from torch.utils import _pytree as pytree

import edbatch
from edbatch.cells.compiled import CompiledCell

DIM, ROWS = 6, 5


def tensors(tree):
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def rows(*shape, dtype=torch.float64, grad=True, number=ROWS):
    x = torch.randn(number, *(shape or (DIM,)), dtype=dtype)
    return x.requires_grad_(grad)


def fused_cells(batched):
    """The fused forms that the last call used."""
    kernels = [kernel for kernel in batched.pipeline.kernel_of.values() if isinstance(kernel, CompiledCell)]
    return [form for kernel in kernels for form in kernel.fused.values() if not form.is_given_up]


def the_cell(batched):
    (cell,) = fused_cells(batched)
    return cell


def calls(program):
    """(kernels, products) of one launch."""
    launch = program.source.partition("def launch")[2]
    kernels = sum(f"kernel{i}(" in launch for i in range(len(program.kernels)))
    return kernels, launch.count("mm(") + len(program.products)


def assert_equal(function, *columns, tolerance=1e-9, is_fused=True, **options):
    """Compiled equals one by one: values, and gradients of parameters and columns. Gives the batched function."""
    batched = edbatch.batch(function, stack=False, **options)
    inputs = [c for c in columns if isinstance(c, torch.Tensor) and c.requires_grad]
    inputs += function.parameters() if isinstance(function, nn.Module) else []
    found = []
    for run in (batched, batched.one_by_one):
        results = tensors(run(*columns))
        loss = sum((r * r).sum() for r in results if r.requires_grad)
        grads = torch.autograd.grad(loss, inputs, allow_unused=True) if inputs else []
        found.append([*results, *[torch.zeros_like(t) if g is None else g for t, g in zip(inputs, grads, strict=True)]])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert bool(fused_cells(batched)) == is_fused
    return batched


class Gates(nn.Module):
    """One product per gate, of two operands."""

    def __init__(self):
        super().__init__()
        self.of_x = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(4))
        self.of_h = nn.ModuleList(nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x, h, c):
        i, f, o, u = (a(x) + b(h) for a, b in zip(self.of_x, self.of_h, strict=True))
        c = f.sigmoid() * c + i.sigmoid() * u.tanh()
        return o.sigmoid() * c.tanh(), c


class Node(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, a, b):
        return torch.tanh(self.left(a) + self.right(b)) * a + b.sigmoid()
