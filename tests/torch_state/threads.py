"""Threads whose first calls overlap, beside a thread that uses plain torch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from interrupting import TIMEOUT, TREES, Doubled, Trees, difference, expected, model, state, wrong
from torch import Tensor, nn

import edbatch

NUM_THREADS = 8


class Watched(nn.Module):
    """A plain module that notices what is unusual."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        made = Doubled.apply(torch.stack([self.linear(x), torch.cat([x[:1], x[1:]])]))
        assert type(made) is Tensor
        assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
        assert torch.is_grad_enabled()
        with torch.no_grad():
            assert not Doubled.apply(made).requires_grad
        with torch.autocast("cpu"):
            assert self.linear(x).dtype is torch.bfloat16
        return made


def plain_torch(module: nn.Module, until: threading.Event) -> int:
    """Uses plain torch until the end; how often."""
    times, x = 0, torch.ones(3, requires_grad=True)
    right = module(x).detach()
    while not until.is_set():
        made = module(x)
        assert torch.equal(made, right)
        made.sum().backward()
        assert type(x.grad) is Tensor
        times, x.grad = times + 1, None
    return times


def gradients(results: Tensor, trees: Trees) -> list[Tensor]:
    """As `trained`, without writing into the parameters, which threads share."""
    loss = (results * torch.linspace(0.5, 1.5, results.numel(), dtype=results.dtype).view_as(results)).sum()
    return [results.detach(), *torch.autograd.grad(loss, list(trees.parameters()))]


def _infer(batched: edbatch.Batched) -> list[Tensor]:
    with torch.no_grad():
        return [batched(TREES)]


def one_round(number: int, right: list[Tensor], *, compile: bool) -> list[str]:
    """First calls of NUM_THREADS threads at once: of the same function, or each of its own; what is wrong."""
    options: dict[str, Any] = {"key": str} if number % 3 == 2 else {}
    models = [model() for _ in range(NUM_THREADS if number % 2 else 1)]
    batched = [edbatch.batch(trees, compile=compile, **options) for trees in models]
    for one in batched:
        one.switches = type(one.switches)(compile, False)
    watched = Watched()
    before = state(models[0])
    barrier, done = threading.Barrier(NUM_THREADS), threading.Event()
    found: list[str] = []

    def work(i: int) -> None:
        trees, mine = models[i % len(models)], batched[i % len(models)]
        barrier.wait(TIMEOUT)
        values = gradients(mine(TREES), trees) if (i + number // 2) % 2 else _infer(mine)
        found.extend(filter(None, [wrong(values, right[: len(values)])]))
        found.extend(filter(None, [wrong(_infer(mine), right[:1])]))

    def guarded(function: Callable[..., Any], *args: Any) -> None:
        try:
            function(*args)
        except BaseException as error:
            found.append(f"{type(error).__name__}: {error}")

    beside = threading.Thread(target=guarded, args=(plain_torch, watched, done), daemon=True)
    threads = [threading.Thread(target=guarded, args=(work, i), daemon=True) for i in range(NUM_THREADS)]
    for thread in (beside, *threads):
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    done.set()
    beside.join(TIMEOUT)
    found += [f"{thread.name} waits for ever" for thread in (beside, *threads) if thread.is_alive()]
    return found + difference(before, state(models[0]))


def main(rounds: int, *, compile: bool) -> list[str]:
    right = expected()
    for number in range(rounds):
        if found := one_round(number, right, compile=compile):
            return [f"round {number}", *found]
    return []


if __name__ == "__main__":
    import sys

    print(main(int(sys.argv[1]), compile=sys.argv[2] == "compiled"))
