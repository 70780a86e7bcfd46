"""`edbatch.batch` and what it returns: a function of one example, run on mini-batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

from torch import nn

from edbatch.errors import BatchError
from edbatch.inspection.costs import largest_costs
from edbatch.inspection.explain import explain
from edbatch.pipeline import Pipeline, zip_columns
from edbatch.recording.interception import one_by_one
from edbatch.recording.program.marking import active, plain_loop
from edbatch.recording.results import STACKS, Results
from edbatch.recording.values.refusals import refuse_transforms
from edbatch.scheduling import policies
from edbatch.scheduling.schedule import Policy
from edbatch.stats import Stats
from edbatch.switches import Switches
from edbatch.torch_insides.modules import REGISTERED
from edbatch.torch_state.outside_compile import outside_compile

if TYPE_CHECKING:
    from edbatch.cells.compiled import CompiledCell
    from edbatch.inspection.cell_plan import CellPlan
    from edbatch.paying import Estimate


class CellPlans(dict[str, "CellPlan"]):
    """Plans by the names of types."""

    def __missing__(self, name: str) -> CellPlan:
        raise KeyError(f"no type is called {name!r}; there are {', '.join(self) or 'none that have plans'}")


class Batched(nn.Module):
    """A function of one example, called with columns of them. When the function is a module, this is one with the
    same parameters.

    Attributes:
        fn: the function of one example.
        policy: decides which nodes run together, and when.
        stats: the numbers of the last call; None before the first.
    """

    fn: Callable[..., Any]
    policy: Policy
    stack: bool | str
    switches: Switches
    key: Callable[..., Hashable] | None
    debug: bool
    stats: Stats | None
    _pipeline: Pipeline | None
    _alone: Estimate | None  # why the last call ran one by one; None if it was batched

    def __init__(
        self,
        fn: Callable[..., Any],
        policy: Policy,
        stack: bool | str,
        switches: Switches,
        key: Callable[..., Hashable] | None = None,
        debug: bool = False,
    ):
        super().__init__()
        owner = getattr(fn, "__self__", fn)
        if isinstance(owner, nn.Module):
            # The same parameters under the same names: the dictionaries themselves are shared.
            for name in REGISTERED:
                self.__dict__[name] = owner.__dict__[name]
            self.training = owner.training
        self.fn, self.key, self.debug = fn, key, debug
        self.policy, self.stack, self.switches = policy, stack, switches
        self.stats = self._pipeline = self._alone = None

    def __setattr__(self, name: str, value: Any) -> None:
        """What is ours is never registered, for the dictionaries of what is registered are those of the model."""
        if name in Batched.__annotations__:
            object.__setattr__(self, name, value)
        else:
            super().__setattr__(name, value)

    @outside_compile
    def forward(self, *columns: Any, **keywords: Any) -> Any:
        """The results of `fn` on every example: positional arguments are columns, keywords are shared."""
        if active.get() is not None:
            return self._inside_another(columns, keywords)
        if plain_loop.get() or _is_eager():
            return self.one_by_one(*columns, **keywords)
        refuse_transforms()
        self._alone = self.pipeline.runs_alone(columns)
        if self._alone is not None:
            outputs = self._loop(columns, keywords) if not self._alone.has_numbers else self._plainly(columns, keywords)
            return Results.collect(outputs).assemble([], self.stack)
        result, self.stats = self.pipeline(columns, keywords, self.policy, self.stack)
        return result

    @property
    def pipeline(self) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = Pipeline(self.fn, self.switches, self.key, debug=self.debug)
        return self._pipeline

    @outside_compile
    def one_by_one(self, *columns: Any, **keywords: Any) -> Any:
        """The same results by a plain loop over the examples: nothing is recorded or batched. For debugging."""
        return Results.collect(self._plainly(columns, keywords)).assemble([], self.stack)

    def _plainly(self, columns: Any, keywords: Any) -> list[Any]:
        return one_by_one(self._loop, columns, keywords)

    def _inside_another(self, columns: Any, keywords: Any) -> Any:
        """A batched function called while another is recorded: its examples become part of that recording."""
        return Results.collect(self._loop(columns, keywords)).assemble([], self.stack)

    def _loop(self, columns: Any, keywords: Any) -> list[Any]:
        return [self.fn(*example, **keywords) for example in zip_columns(columns)]

    def explain(self) -> str:
        """What the last call did and why.

        Batches against the lower bound and other policies, copies, what ran one by one.
        """
        if self.stats is None and _is_eager():
            return "ran one by one, because EDBATCH_EAGER is set"
        if self.stats is None:
            raise BatchError("nothing to explain yet; call the batched function first")
        known = self.pipeline.known
        alone = "" if self._alone is None else f"the last call ran one by one: {self._alone}.\nThe last batched call:\n"
        forms = {name: cell.form_in_words(self.pipeline.switches) for name, cell in self._cells.items()}
        reports = [self.pipeline.kernels.growth.report(), None if known is None else known.report]
        origin, codes = self.pipeline.last_origin, self.pipeline.found.codes
        costs = largest_costs(self.stats, origin, codes, has_keys=known is not None)
        said = explain(self.stats, self.policy, forms, costs)
        return "".join([alone, said, *[f"\n\n  {report}" for report in reports if report]])

    @property
    def runs_alone(self) -> bool:
        """Whether the last call ran one by one, because batching would not have paid; `explain()` says why."""
        return self._alone is not None

    @property
    def cell_plans(self) -> dict[str, CellPlan]:
        """How the cells of the last call are batched and laid out inside, by the names that `explain` uses.

        `print(plan)` shows body, batches, memory, copies and code. What ran one by one has no plan.

        >>> import torch, edbatch
        >>> batched = edbatch.batch(torch.nn.GRUCell(2, 2))
        >>> _ = batched(torch.ones(3, 2))
        >>> batched.cell_plans
        {'GRUCell(f32[2])': CellPlan(GRUCell: 13 ops, 9 batches, 0 → 0 copies)}
        """
        from edbatch.inspection.cell_plan import plan_of

        if self.stats is None:
            raise BatchError(
                "there are no plans yet; call the batched function first (under EDBATCH_EAGER there are none)"
            )
        switches = self.pipeline.switches
        return CellPlans({name: plan_of(cell, switches) for name, cell in self._cells.items()})

    @property
    def _cells(self) -> dict[str, CompiledCell]:
        from edbatch.cells.compiled import CompiledCell

        return {name: k for name, k in self.pipeline.kernel_of.items() if isinstance(k, CompiledCell)}

    def train(self, mode: bool = True) -> Batched:
        super().train(mode)
        owner = getattr(self.fn, "__self__", self.fn)
        if isinstance(owner, nn.Module):
            owner.train(mode)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pipeline": None, "stats": None, "_alone": None}

    def extra_repr(self) -> str:
        return (
            f"{getattr(self.fn, '__name__', type(self.fn).__name__)}, policy={self.policy.name}, stack={self.stack!r}"
        )


def batch(
    fn: Callable[..., Any],
    *,
    policy: str | Policy = "learned",
    stack: bool | str = True,
    compile: bool = True,
    exact_math: bool = False,
    key: Callable[..., Hashable] | None = None,
    debug: bool = False,
) -> Batched:
    """Run a function of one example on mini-batches of different examples, with few large kernels, forward and
    backward.

    Args:
        fn: a module or function of one example.
        policy: decides what to launch next: a policy or its name. "learned" learns a finite state machine on the first
            mini-batch, and again when types of nodes are new; "bound-greedy", "agenda", "depth", … learn nothing.
        stack: how results are put together: True stacks them, "cat" gives (rows of all examples, lengths), "pad" pads
            with zeros, False gives a list with one result per example.
        compile: whether cells run as fused kernels, on the CPU (EDBATCH_COMPILE=0 turns it off everywhere).
        exact_math: whether tanh, sigmoid, exp, … are torch's own also in fused cells; ours are accurate to 1e-6.
        key: names examples, so that each is recorded once: called with the positional arguments of one example, as
            `fn` is, it gives a hashable value, e.g. `key=lambda tree: tree.number`. An example whose key was seen
            before is not recorded again. Parameters, buffers, and tensors given as entries of columns are read
            afresh in every call; an entry of a column that is a constant (a number, string, flag) or a list of
            constants counts as a part of the key. Everything else is frozen by the key: the structure, numbers and
            tensors found deeper inside examples, closures and globals that `fn` reads; and what else its Python does is
            not repeated. None as a key: this example is always recorded. `explain()` says how many examples were known.
        debug: record every example although its key is known, and raise an error if that makes a difference.

    Returns:
        A `Batched`: called with columns (one entry per example) by position and shared values by keyword.

    >>> import torch, edbatch
    >>> linear = torch.nn.Linear(2, 1)
    >>> def depth(tree):  # a tree is a vector or a pair of trees
    ...     return linear(tree) if isinstance(tree, torch.Tensor) else torch.tanh(depth(tree[0]) + depth(tree[1]))
    >>> x = torch.ones(2)
    >>> batched = edbatch.batch(depth)
    >>> batched([(x, x), ((x, x), x)]).shape
    torch.Size([2, 1])
    """
    if not callable(fn):
        raise BatchError(f"edbatch.batch takes a module or a function of one example, not {type(fn).__name__}")
    if isinstance(fn, type) and issubclass(fn, nn.Module):
        raise BatchError(f"edbatch.batch takes a module, not its class; give {fn.__name__}(...)")
    if isinstance(fn, Batched):
        raise BatchError("this function is batched already")
    if not any(stack is s or (isinstance(stack, str) and stack == s) for s in STACKS):
        raise BatchError(f'stack={stack!r} is unknown; use True, "cat", "pad" or False')
    if key is not None and not callable(key):
        raise BatchError(f"key={key!r} is no function of one example, such as key=lambda tree: tree.number")
    if debug and key is None:
        raise BatchError("debug=True checks keys, but there is no key; give key=, a function of one example")
    if isinstance(policy, str):
        policy = policies.from_name(policy)
    elif isinstance(policy, type) or not hasattr(policy, "run"):
        raise BatchError(f"policy={policy!r} is no policy; give one like edbatch.policies.BoundGreedy(), or its name")
    on = compile and os.environ.get("EDBATCH_COMPILE", "1") not in ("", "0")
    return Batched(fn, policy, stack, Switches(on, exact_math), key, debug)


def _is_eager() -> bool:
    return os.environ.get("EDBATCH_EAGER", "0") not in ("", "0")
