"""Calls that are interrupted somewhere, and what must be as it was afterwards.

A case is a way to call the library; `Interrupted(k)` does at the k-th line that runs in it what Ctrl-C does, be it a
line of ours, of torch or of contextlib. Such an interrupt comes also where a real one does not: between the end of
a `with` and its `__exit__`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

import edbatch
from edbatch.cells.fused.library import native
from edbatch.recording.program import marking
from edbatch.runtime import frozen
from edbatch.torch_state import hooks

WATCHED = (*[os.path.dirname(module.__file__) + os.sep for module in (edbatch, torch)], contextlib.__file__)
PLACES = [
    (nn.Module, "__call__"),
    (torch.autograd.Function, "apply"),
    (torch, "stack"),
    (torch, "cat"),
    (torch.set_grad_enabled, "__init__"),
    *[
        (cls, name)
        for cls in (torch.autocast, torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode)
        for name in ("__enter__", "__exit__")
    ],
]
TIMEOUT = 60  # seconds, after which a thread is taken to wait for ever


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert type(x) is Tensor or torch._C._len_torch_dispatch_stack(), "a fake tensor of another thread"
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return 2 * grad


class Node(nn.Module):
    """A cell that writes in place, has a buffer and uses a custom autograd function."""

    def __init__(self, size: int):
        super().__init__()
        self.left, self.right = nn.Linear(size, size), nn.Linear(size, size)
        self.register_buffer("scale", torch.full((size,), 0.5))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        total = self.left(left) + self.right(right)
        total.mul_(self.scale)
        with torch.no_grad():
            shift = left.mean()
        return torch.tanh(Doubled.apply(torch.logcumsumexp(total, 0))) + shift


class Seen(nn.Linear):
    """A cell with a hook, and so run one by one, in which torch.func maps."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.vmap(torch.sin)(super().forward(x))


class Trees(nn.Module):
    """Trees are numbers, or pairs of trees."""

    def __init__(self, size: int = 4):
        super().__init__()
        self.leaf = nn.Embedding(8, size)
        self.node = edbatch.cell(Node(size))
        self.seen = edbatch.cell(Seen(size, size))
        self.seen.register_forward_hook(_look)
        self.bias = nn.Parameter(torch.zeros(size))

    def encode(self, tree: Any) -> Tensor:
        if not isinstance(tree, tuple):
            return self.leaf(tree)
        return self.node(self.encode(tree[0]), self.encode(tree[1]))

    def forward(self, tree: Any) -> Tensor:
        found = self.encode(tree) + self.bias.exp()
        with torch.no_grad():
            weight = found.sum()
        both = torch.stack([found, self.seen(found)])
        return torch.cat([both[0] * weight, Doubled.apply(both[1])])


def _look(module: nn.Module, args: Any, result: Tensor) -> None:
    """A hook that does nothing."""


TREES = [1, (2, 3), ((1, 2), 3), (4, (5, 6)), ((1, 2), (3, 4))]


def model() -> Trees:
    torch.manual_seed(1)
    return Trees().double()


def trained(results: Tensor, trees: Trees) -> list[Tensor]:
    """The results and the gradients of all parameters."""
    loss = (results * torch.linspace(0.5, 1.5, results.numel(), dtype=results.dtype).view_as(results)).sum()
    trees.zero_grad()
    loss.backward()
    return [results.detach(), *[p.grad for p in trees.parameters()]]


class Case:
    """A way to call: `prepare()` what is not interrupted, `call()` what is."""

    def __init__(self, trees: Trees, batched: edbatch.Batched, prepare: Callable[[], Any], call: Callable[[], Any]):
        self.trees, self.batched, self.prepare, self.call = trees, batched, prepare, call


def _infer(batched: edbatch.Batched) -> Tensor:
    with torch.no_grad():
        return batched(TREES)


def _frozen(batched: edbatch.Batched) -> Tensor:
    with edbatch.frozen(batched):
        return batched(TREES)


def _nothing() -> None: ...


def cases() -> dict[str, Callable[[], Case]]:
    """By name, how each is made anew."""

    def made(
        call: Callable[[Trees, edbatch.Batched], Any], *, first: bool, compile: bool = False, **options: Any
    ) -> Callable[[], Case]:
        def make() -> Case:
            trees = model()
            batched = edbatch.batch(trees, **options)
            batched.switches = type(batched.switches)(compile, False)
            if compile and first:
                native._FUNCTIONS.clear()
            if not first:
                trained(batched(TREES), trees)
                _infer(batched)
            return Case(trees, batched, _nothing, lambda: call(trees, batched))

        return make

    def name(tree: Any) -> str:
        return str(tree)

    def train(trees: Trees, batched: edbatch.Batched) -> Any:
        return trained(batched(TREES), trees)

    return {
        "first, training": made(train, first=True),
        "first, training, compiled": made(train, first=True, compile=True),
        "first, inference": made(lambda trees, batched: _infer(batched), first=True),
        "first, key": made(train, first=True, key=name),
        "later, training": made(train, first=False),
        "later, training, compiled": made(train, first=False, compile=True),
        "later, inference, compiled": made(lambda trees, batched: _infer(batched), first=False, compile=True),
        "later, key": made(train, first=False, key=name),
        "key, debug": made(train, first=False, key=name, debug=True),
        "one by one": made(lambda trees, batched: trained(batched.one_by_one(TREES), trees), first=False),
        "explain": made(lambda trees, batched: batched.explain(), first=False),
        "record": made(lambda trees, batched: edbatch.record(trees, TREES), first=True),
        "check": made(lambda trees, batched: edbatch.check(trees, TREES), first=True),
        "frozen": made(lambda trees, batched: _frozen(batched), first=False, compile=True),
    }


def state(trees: nn.Module) -> dict[str, Any]:
    """All that a call must leave as it was."""
    cuda = torch.backends.cuda
    tracing = torch._C._autograd._saved_tensors_hooks_set_tracing(False)
    torch._C._autograd._saved_tensors_hooks_set_tracing(tracing)
    tables = [
        (list(table), [id(v) for v in table.values()] if isinstance(table, dict) else None)
        for m in trees.modules()
        for table in (m.__dict__, *[v for k, v in m.__dict__.items() if k.endswith("_hooks") and v is not None])
        if table is not None
    ]
    return {
        "methods of torch": [id(vars(holder)[name]) for holder, name in PLACES],
        "function modes": torch._C._len_torch_function_stack(),
        "transforms": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "torch functions": torch._C._is_torch_function_enabled(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "infra modes": [
            torch._C._get_dispatch_mode(key) for key in torch._C._TorchDispatchModeKey.__members__.values()
        ],
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast depth": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
        "excluded keys": [
            torch._C._dispatch_tls_is_dispatch_key_excluded(getattr(torch._C.DispatchKey, key))
            for key in ("AutocastCPU", "AutogradCPU", "ADInplaceOrView", "Python", "PythonTLSSnapshot", "Functionalize")
        ],
        "included keys": [
            torch._C._dispatch_tls_is_dispatch_key_included(getattr(torch._C.DispatchKey, key))
            for key in ("ADInplaceOrView", "Python", "PythonTLSSnapshot", "Functionalize")
        ],
        "dtype": torch.get_default_dtype(),
        "attention": [
            cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled(),
            cuda.math_sdp_enabled(),
        ],
        "saved tensors": tracing,
        "recursion": sys.getrecursionlimit(),
        "garbage": gc.isenabled(),
        "log": logging.getLogger("torch._subclasses.fake_tensor").disabled,
        "context": [v.get() for v in (marking.active, marking.plain_loop, hooks.applying, frozen._scope)],
        "random": hash(bytes(torch.get_rng_state().tolist())),
        "modules": tables,
        "buffers": [(id(b), b.tolist()) for b in trees.buffers()],
        "parameters": [(id(p), p._version) for p in trees.parameters()],
    }  # fmt: skip


class Interrupted:
    """Runs a call with lines counted; at the k-th one, if there is one, it is interrupted."""

    def __init__(self, at: int = -1):
        self._at = at
        self.lines: list[tuple[str, int]] = []  # file and number of each line that has run

    def __call__(self, call: Callable[[], Any]) -> BaseException | None:
        """What the call has raised."""
        error = None
        with _hushed():
            try:
                sys.settrace(self._trace)
                call()
            except BaseException as found:
                error = found
            finally:
                sys.settrace(None)
        return error

    def _trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(WATCHED) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            self.lines.append((frame.f_code.co_filename, frame.f_lineno))
            if len(self.lines) == self._at + 1:
                signal.getsignal(signal.SIGINT)(signal.SIGINT, frame)  # raises KeyboardInterrupt, now or later
        return self._line


@contextlib.contextmanager
def _hushed() -> Iterator[None]:
    """An interrupt in a `__del__` is swallowed by Python, with a word to stderr."""
    before, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        yield
    finally:
        sys.unraisablehook = before


def difference(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [f"{name}: {before[name]} -> {after[name]}" for name in before if before[name] != after[name]]


def wrong(found: list[Tensor], expected: list[Tensor]) -> str | None:
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        if type(a) is not type(b) or not torch.allclose(a, b, rtol=1e-6, atol=1e-9):
            return f"value {i} is wrong: {a} instead of {b}"
    return None


def in_thread(call: Callable[[], Any]) -> Any:
    """What a call gives in another thread; TimeoutError if that waits for ever."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    if not results:
        raise TimeoutError("another thread waits for ever")
    if isinstance(results[0], BaseException):
        raise results[0]
    return results[0]


def expected() -> list[Tensor]:
    trees = model()
    return trained(torch.stack([trees(_as_tensors(tree)) for tree in TREES]), trees)


def _as_tensors(tree: Any) -> Any:
    return tuple(map(_as_tensors, tree)) if isinstance(tree, tuple) else torch.tensor(tree)


def complaints(make: Callable[[], Case], at: int, right: list[Tensor], *, thread: bool = True) -> list[str]:
    """What is wrong after an interrupt at a line."""
    case = make()
    before = state(case.trees)
    error = Interrupted(at)(case.call)
    found = [] if error is None or type(error) is KeyboardInterrupt else [f"raised {error!r}"]
    del error  # whose traceback keeps frames alive, and so contexts
    found += difference(before, state(case.trees))
    if found:
        return found
    try:
        calls = [in_thread] * thread + [lambda call: call()]
        for run in calls:
            error_found = wrong(run(lambda: trained(case.batched(TREES), case.trees)), right)
            found += [error_found] if error_found else []
        with torch.no_grad():
            error_found = wrong([case.batched(TREES)], right[:1])
        found += [error_found] if error_found else []
    except Exception as error:
        return [*found, f"next call: {type(error).__name__}: {str(error)[:300]}"]
    return found + difference(before, state(case.trees))


def lines_of(make: Callable[[], Case]) -> list[tuple[str, int]]:
    """The lines that run in a case."""
    counted = Interrupted()
    error = counted(make().call)
    if error is not None:
        raise error
    return counted.lines


def choices(lines: list[tuple[str, int]], seed: int, times: int = 1) -> list[int]:
    """Numbers of events, some of every line: the first one, and others by chance."""
    places: dict[tuple[str, int], list[int]] = {}
    for i, line in enumerate(lines):
        places.setdefault(line, []).append(i)
    chance = random.Random(seed)
    return sorted({k for at in places.values() for k in [at[0], *chance.sample(at, min(len(at), times - 1))]})


def run_all(
    name: str, make: Callable[[], Case], numbers: list[int], lines: list[tuple[str, int]], right: list[Tensor]
) -> int:
    """Interrupts a case at all these events, each child process until something is wrong; prints what is."""
    failures = done = 0
    while done < len(numbers):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            with open(write, "w", buffering=1) as out:
                for k in numbers[done:]:
                    found = complaints(make, k, right)
                    print(json.dumps(found), file=out)
                    if found:
                        break
            os._exit(0)
        os.close(write)
        with open(read) as answers:
            before = done
            for answer in answers:
                if found := json.loads(answer):
                    failures += 1
                    file, line = lines[numbers[done]]
                    print(f"{name}: {file.removeprefix(os.path.dirname(WATCHED[0][:-1]))}:{line}", *found, sep="\n    ")
                    sys.stdout.flush()
                done += 1
        os.waitpid(child, 0)
        if done == before:
            print(f"{name}: event {numbers[done]}, {lines[numbers[done]]}: the process ended")
            failures, done = failures + 1, done + 1
    return failures


def main(pattern: str, times: int, only: str) -> None:
    """The long form: every line of the cases with `pattern` in their name, `times` often; `only` these files."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in its background ignore it
    right = expected()
    for name, make in cases().items():
        if pattern in name:
            make().call()
            lines = lines_of(make)
            numbers = [k for k in choices(lines, seed=0, times=times) if only in lines[k][0]]
            failures = run_all(name, make, numbers, lines, right)
            distinct = len({lines[k] for k in numbers})
            print(f"{name}: {len(numbers)} interrupts at {distinct} lines, {failures} wrong", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
