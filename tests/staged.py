"""A mini-batch whose stages tests look at: slots of most kinds, cells of several outputs, inputs from outside."""

import torch
from torch import nn

import edbatch
from edbatch.stats import Stopwatch

X = torch.arange(6, dtype=torch.float64).view(2, 3)
WEIGHT = nn.Parameter(torch.ones(3, dtype=torch.float64))


@edbatch.cell
def pair(x, n):
    return x * n, x.sum()


@edbatch.cell
def weigh(x):
    return x * WEIGHT


def function(x, n):
    first, total = pair(x, n)
    rows = torch.stack([first, weigh(first + x)][:n])
    return {"most": rows.max(0)[0], "rows": rows + torch.tanh(rows), "total": total, "n": n}


def recorded():
    """A recording and its results, before they are rewritten."""
    return edbatch.batch(function).pipeline.record_examples((X, [1, 2]), {})


def executed():
    """An execution that has not run, and its results."""
    batched = edbatch.batch(function)
    return batched.pipeline.prepare((X, [1, 2]), {}, batched.policy, Stopwatch())


def prepared():
    """A plan, the results and the needs of backward."""
    execution, results = executed()
    return execution.plan, results, execution.needs
