"""Runs a program both ways, by plain torch one example at a time and batched, and says how they differ.

A program is here a function `make(randn)` that makes the model and its examples; it is called once for each side, so
that the two share nothing. This file imports nothing of the fuzzer: the script of a finding contains a copy of it.
"""

import functools
import gc
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, NamedTuple  # noqa: F401

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: F401  (programs use it)

import edbatch
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import num_function_modes

TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4}  # relative to the largest value of a tensor, or to 1
COARSE = 5e-2  # the same for programs that compute in 16-bit floats, also by autocast; the settings say so
NUDGE = {torch.float64: 1e-13, torch.float32: 1e-6}  # change of inputs, to find out whether a program is unstable
FAILURES = ("wrong", "error")


class Different(Exception):
    """The two sides differ."""


def random_tensor(*shape: int, seed: int, dtype: torch.dtype | None = None, nudge: float = 0.0) -> Tensor:
    """Normal random numbers; with `nudge` their last digits differ."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    values = values * (1 + nudge * torch.randn(shape, generator=generator, dtype=torch.float64))
    return values.to(dtype or torch.get_default_dtype())


def compare(make: Callable[..., Any], settings: dict[str, Any]) -> tuple[str, str]:
    """The outcome of a program: "equal", "torch raises", "refused", "unstable", "error" or "wrong", with a message."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(settings["dtype"])
    state = state_of_torch()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            kind, message = _compare(make, settings)
            if kind == "wrong" and not message.startswith("state") and _is_unstable(make, settings):
                kind = "unstable"
        changed = [name for name, value in state_of_torch().items() if value != state[name]]
        return ("wrong", f"state of torch: {', '.join(changed)} changed, after {kind}") if changed else (kind, message)
    finally:
        torch.set_default_dtype(before)


def _compare(make: Callable[..., Any], settings: dict[str, Any]) -> tuple[str, str]:
    try:
        plain = make(random_tensor)
        expected = [_run_plain(plain, call, settings) for call in range(settings["calls"])]
    except Exception as error:
        return "torch raises", f"{type(error).__name__}: {_first_line(error)}"
    ours = make(random_tensor)
    try:
        batched = ours.batch()
        for call, one in enumerate(expected):
            _compare_call(ours, batched, call, one, settings)
    except Different as error:
        return "wrong", str(error)
    except edbatch.EdbatchError as error:
        return "refused", f"{type(error).__name__}: {_first_line(error)}"
    except Exception as error:
        return "error", f"{type(error).__name__}: {_first_line(error)}"
    return "equal", ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _run_plain(side: Any, call: int, settings: dict[str, Any]) -> Any:
    """One call by a plain loop. Returns results by example, then everything that a call may change."""
    columns = _begin(side, call)
    rng = torch.get_rng_state()
    before = {name: tensor.detach().clone() for name, tensor in _tensors(side, columns).items()}
    with _around(side):
        results = [side.model(*example, **side.keywords) for example in zip(*columns, strict=True)]
        grad = torch.is_grad_enabled()  # without it batched results need no gradients, even if they are inputs
    if not torch.equal(rng, torch.get_rng_state()):
        raise RuntimeError("random numbers were drawn, which differ by nature")
    leaves = [pytree.tree_leaves(result) for result in results]
    kept = [[leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in row] for row in leaves]
    known = {id(tensor) for tensor in _tensors(side, columns).values()}
    needs_grad = [[_needs_grad(leaf, known) for leaf in row] for row in leaves]
    if grad:
        _backward(leaves, settings)
    structure, after = pytree.tree_structure(results[0]), _snapshot(side, columns)
    writes = not all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    return SimpleNamespace(
        leaves=kept, needs_grad=needs_grad, structure=structure, after=after, writes=writes, grad=grad
    )


def _needs_grad(leaf: Any, known: set[int]) -> bool:
    """Whether gradients flow from a result to one of the known tensors. requires_grad does not tell: it is also set for
    views made under no_grad, for what is computed from them, and for leaves that a call makes by requires_grad_()."""
    if not isinstance(leaf, Tensor) or not leaf.requires_grad or leaf.grad_fn is None:
        return isinstance(leaf, Tensor) and leaf.requires_grad and id(leaf) in known
    nodes = [leaf.grad_fn]
    for node in nodes:  # the list grows meanwhile
        nodes += [n for n, _ in node.next_functions if n is not None and n not in nodes]
    return any(id(node.variable) in known for node in nodes if hasattr(node, "variable"))


def _compare_call(side: Any, batched: Any, call: int, expected: Any, settings: dict[str, Any]) -> None:
    columns = _begin(side, call)
    rng = torch.get_rng_state()
    with _around(side):
        result = batched(*columns, **side.keywords)
    _same(torch.equal(rng, torch.get_rng_state()), f"call {call}: random generator", "changed", "not")
    leaves = _compare_results(result, expected, call, settings)
    if not expected.writes:
        for result in _in_threads(side, batched, columns, settings["threads"]):
            _compare_results(result, expected, call, settings)
    if expected.grad:
        _backward(leaves, settings)
    ours, theirs = _snapshot(side, columns), expected.after
    _same(list(ours) == list(theirs), f"call {call}: what there is", list(ours), list(theirs))
    for name, value in theirs.items():
        _compare_leaf(f"call {call}: {name}", ours[name], value, settings, name.startswith("gradient"))


def _begin(side: Any, call: int) -> Any:
    side.before(call)
    columns = side.columns(call)
    for tensor in _tensors(side, columns).values():
        tensor.grad = None
    return columns


def _around(side: Any) -> Any:
    return side.around() if hasattr(side, "around") else nullcontext()


def _compare_results(result: Any, expected: Any, call: int, settings: dict[str, Any]) -> list[list[Any]]:
    """Compares batched results with the expected ones; returns the leaves of the batched ones, by example."""
    leaves = _by_example(result, expected, settings["stack"])
    for j in range(len(expected.leaves[0])):
        name = f"call {call}: result {j}"
        dtypes = {theirs[j].dtype for theirs in expected.leaves if isinstance(theirs[j], Tensor)}
        for i, (ours, theirs) in enumerate(zip(leaves, expected.leaves, strict=True)):
            if settings["stack"] is not False and len(dtypes) > 1:
                theirs[j] = theirs[j].to(functools.reduce(torch.promote_types, dtypes))
            _compare_leaf(f"{name} of example {i}", ours[j], theirs[j], settings)
        for i, (ours, needs) in enumerate(zip(leaves, expected.needs_grad, strict=True)):
            has = isinstance(ours[j], Tensor) and ours[j].requires_grad
            is_same = has == needs[j] or (not settings["precise"] if has else not expected.grad)
            _same(is_same, f"requires_grad of {name} of example {i}", has, needs[j])
    return leaves


def _by_example(result: Any, expected: Any, stack: Any) -> list[list[Any]]:
    """The leaves of a batched result, by example, however `stack` has joined them."""
    if stack is False:
        for one in result:
            structure = pytree.tree_structure(one)
            _same(structure == expected.structure, "structure of results", structure, expected.structure)
        return [pytree.tree_leaves(one) for one in result]
    columns: list[Any] = []
    flat = expected.structure.flatten_up_to(result)
    for leaf, theirs in zip(flat, zip(*expected.leaves, strict=True), strict=True):
        if not isinstance(theirs[0], Tensor):
            columns.append(leaf)
        elif stack is True:
            columns.append(leaf.unbind(0))
        elif stack == "cat":
            rows, lengths = leaf
            columns.append([p.view(t.shape) for p, t in zip(rows.split(lengths.tolist()), theirs, strict=True)])
        else:
            columns.append([p[tuple(slice(n) for n in t.shape)] for p, t in zip(leaf, theirs, strict=True)])
    return [list(row) for row in zip(*columns, strict=True)]


def _in_threads(side: Any, batched: Any, columns: Any, count: int) -> list[Any]:
    """The results of the same call from several threads at once."""
    results: list[Any] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            with _around(side):
                results.append(batched(*columns, **side.keywords))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(count if count > 1 else 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def _backward(leaves: list[list[Any]], settings: dict[str, Any]) -> None:
    """Backward from a sum of results with uneven weights: of all results, or only of the first leaf or example."""
    terms = []
    for i, row in enumerate(leaves):
        for j, leaf in enumerate(row):
            is_left_out = (settings["loss"] == "first leaf" and j) or (settings["loss"] == "first example" and i)
            if isinstance(leaf, Tensor) and leaf.requires_grad and not is_left_out:
                weights = torch.linspace(0.5, 1.5, leaf.numel(), dtype=torch.float64).view(leaf.shape).to(leaf.dtype)
                terms.append((leaf * weights).sum().double())
    if terms:
        torch.stack(terms).sum().backward()  # type: ignore[no-untyped-call]


def _tensors(side: Any, columns: Any) -> dict[str, Tensor]:
    """All tensors of the model and of the examples, by name."""
    found: dict[str, Tensor] = {}
    holders = dict(side.state) | side.keywords | ({"model": side.model} if isinstance(side.model, nn.Module) else {})
    for name, holder in holders.items():
        if isinstance(holder, Tensor):
            found[name] = holder
        elif isinstance(holder, nn.Module):
            found |= {f"{name}.{k}": t for k, t in (*holder.named_parameters(), *holder.named_buffers())}
    for i, leaf in enumerate(pytree.tree_leaves(list(columns))):
        if isinstance(leaf, Tensor):
            found[f"input {i}"] = leaf
    return found


def _snapshot(side: Any, columns: Any) -> dict[str, Any]:
    """What a call may have changed: tensors, gradients, attributes of modules."""
    now: dict[str, Any] = {}
    for name, tensor in _tensors(side, columns).items():
        now[name] = tensor.detach().clone()
        now[f"requires_grad of {name}"] = tensor.requires_grad
        grad = tensor.grad if tensor.is_leaf else None
        now[f"gradient of {name}"] = None if grad is None else grad.to_dense().clone()
    for name, holder in side.state.items():
        if isinstance(holder, nn.Module):
            now |= {f"attributes of {name}.{path}": sorted(m.__dict__) for path, m in holder.named_modules()}
    return now


def _compare_leaf(name: str, ours: Any, theirs: Any, settings: dict[str, Any], is_gradient: bool = False) -> None:
    if not isinstance(theirs, Tensor):
        may_be_zeros = not settings["strict"] or "input" in name
        if is_gradient and theirs is None and isinstance(ours, Tensor) and may_be_zeros:
            return _same(not bool(ours.nan_to_num().any()), name, ours, None)
        same = type(ours) is type(theirs) and (ours == theirs or (ours != ours and theirs != theirs))
        return _same(bool(same), name, ours, theirs)
    _same(isinstance(ours, Tensor), name, ours, theirs)
    facts = [(tuple(t.shape), str(t.dtype)) for t in (ours, theirs)]
    _same(facts[0] == facts[1], f"shape and dtype of {name}", *facts)
    if not theirs.is_floating_point():
        return _same(torch.equal(ours, theirs), name, ours, theirs)
    computed = torch.float32 if settings["single"] and theirs.dtype == torch.float64 else theirs.dtype
    tolerance = COARSE if settings["coarse"] else TOLERANCE.get(computed, COARSE)
    a, b = ours.detach().double(), theirs.double()
    if is_gradient and not settings["strict"]:  # not reached by the loss: zero times infinity is nan
        a = torch.where(a.isnan(), b, a)
    largest = float(b.abs().nan_to_num(posinf=0.0).max()) if b.numel() else 0.0
    same = torch.isclose(a, b, rtol=tolerance, atol=tolerance * max(largest, 1.0), equal_nan=True)
    if is_gradient:  # infinities of several examples may add up to nan, depending on the order
        same |= ~(a.isfinite() | b.isfinite())
    _same(bool(same.all()), name, a, b)
    return None


def _same(is_same: bool, name: str, ours: Any, theirs: Any) -> None:
    if not is_same:
        ours, theirs = (t.tolist() if isinstance(t, Tensor) else t for t in (ours, theirs))
        raise Different(f"{name} is {ours}, and {theirs} one by one")


def _is_unstable(make: Callable[..., Any], settings: dict[str, Any]) -> bool:
    """Whether results of plain torch change much when inputs change in their last digits."""
    nudge = 1e-3 if settings["coarse"] else NUDGE.get(settings["dtype"], 1e-3)
    exact, nudged = make(random_tensor), make(functools.partial(random_tensor, nudge=nudge))
    loose = settings | {"strict": True}
    try:
        for call in range(settings["calls"]):
            one, other = _run_plain(exact, call, settings), _run_plain(nudged, call, settings)
            for ours, theirs in zip(one.leaves, other.leaves, strict=True):
                for a, b in zip(ours, theirs, strict=True):
                    _compare_leaf("", a, b, loose)
            for name in one.after:
                if name.startswith("gradient"):
                    _compare_leaf("", one.after[name], other.after[name], loose)
    except Different:
        return True
    return False


def state_of_torch() -> dict[str, Any]:
    """What a batched call must leave as it was."""
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "nn.Module.__call__": nn.Module.__call__,
        "autograd.Function.apply": torch.autograd.Function.__dict__.get("apply"),
        "function modes": num_function_modes(),
        "garbage collection": gc.isenabled(),
        "threads": torch.get_num_threads(),
    }
