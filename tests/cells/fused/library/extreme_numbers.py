"""Cells that pick by numbers near the ends of int64, in a process of their own: a wrong address may end it.

Run as a script, it prints one JSON line per expression and number: what the batched call gave and what torch gives.
"""

import json

import torch
import torch.nn.functional as F

import edbatch

ROWS, WIDTH = 7, 4
TABLE = torch.arange(float(ROWS * WIDTH)).view(ROWS, WIDTH)
TRAINED = torch.ones(ROWS, WIDTH, requires_grad=True)
LINE = torch.arange(float(ROWS))
END = 2**63 - 1
NUMBERS = [END, END - 4, -END - 1, -END + 6, 2**62, -(2**62), 2**32 + 3, -(2**32), 10**18, -(10**9), -1, 0, 3, 7]
BIG = 10**9
EXPRESSIONS = {
    "the number": lambda n: n,
    "plus": lambda n: n + 5,
    "plus much": lambda n: n + BIG,
    "minus": lambda n: n - 5,
    "minus much": lambda n: n - BIG,
    "from": lambda n: 5 - n,
    "half times three": lambda n: n // 2 * 3,
    "times": lambda n: n * 3,
    "times much": lambda n: n * BIG,
    "squared": lambda n: n * n,
    "power": lambda n: n**2,
    "negated": lambda n: -n,
    "abs": lambda n: n.abs(),
    "abs plus": lambda n: n.abs() + 5,
    "clamped below": lambda n: n.clamp(min=0) + 3,
    "larger": lambda n: torch.maximum(n, -n) + 2,
    "relu": lambda n: (n + 1).relu() + BIG,
    "sum": lambda n: torch.stack([n, n, n]).sum(),
    "picked": lambda n: torch.where(n > 0, n + 6, n - 6),
    "from a float": lambda n: (n.double() * 3).long() + 2,
    "from an odd float": lambda n: (n.float() / (n - n)).long() - 1,
    "remainder": lambda n: (n + 5) % 7,
    "remainder of a product": lambda n: (n * BIG).remainder(9),
    "shifted": lambda n: (n << 3) + 1,
    "with a mask": lambda n: n + (n > 0) * END,
    "fused": lambda n: torch.addcmul(n, n, n),
    "put": lambda n: torch.stack([n, n]).scatter_add(0, torch.ones(1, dtype=torch.int64), n.view(1))[1],
}
LOOKUPS = {
    "embedding": lambda at: F.embedding(at, TABLE) * 2,
    "trained embedding": lambda at: F.embedding(at, TRAINED) * 2,
    "gather": lambda at: LINE.gather(0, at.view(1)) * 2,
    "index": lambda at: LINE[at] * 2,
    "select": lambda at: TABLE.index_select(0, at.view(1)) * 2,
    "scatter": lambda at: LINE.scatter(0, at.view(1), 1.0) * 2,
    "put": lambda at: LINE.index_put((at,), torch.tensor(1.0)) * 2,
    "loss": lambda at: F.cross_entropy(LINE, at) * 2,
    "value": lambda at: at,
}


CASES = [
    *((name, kind) for name in EXPRESSIONS for kind in ("value", "embedding")),
    *((name, kind) for kind in LOOKUPS for name in ("plus much", "half times three")),
]


def result(function, *arguments):
    """Values, and the gradient of what is trained; or that there was an error."""
    try:
        found = torch.as_tensor(function(*arguments)).reshape(-1)
    except (IndexError, RuntimeError):
        return "error"
    grads = torch.autograd.grad(found.sum(), TRAINED) if found.requires_grad else []
    return [*found.tolist(), *(g.tolist() for g in grads)]


def main() -> None:
    for name, kind in dict.fromkeys(CASES):
        expression, look_up = EXPRESSIONS[name], LOOKUPS[kind]
        batched = edbatch.batch(edbatch.cell(lambda n, e=expression, f=look_up: f(e(n))))
        for number in NUMBERS:
            case = {"case": f"{kind} of {name}", "number": number}
            print(json.dumps(case), flush=True)
            theirs = result(lambda n: look_up(expression(torch.tensor(n))), number)  # noqa: B023
            print(json.dumps(case | {"ours": result(batched, [number]), "theirs": theirs}), flush=True)


if __name__ == "__main__":
    main()
