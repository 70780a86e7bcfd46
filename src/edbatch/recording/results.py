"""Results of a batched function: from one pytree per example to stacked, concatenated, padded or listed tensors.

In, before anything is computed: what the function returned for each example, with lazy values in place of tensors.
`Results.collect` notes which values are to be gathered, in groups of one leaf and one spec (shape, dtype, device). In,
afterwards: one tensor per group. Out: the return value of the batched call, which `Results.assemble` makes of them as
`stack=` says. Results of a plain loop over examples are put together likewise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from edbatch.errors import BatchError
from edbatch.layout.layout import Ints, renumber
from edbatch.recording.values.lazy import Lazy, PendingSum, Ragged
from edbatch.recording.values.ragged import check_owner, is_list
from edbatch.spec import Spec, is_tensor
from edbatch.torch_insides import pytree

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder
    from edbatch.recording.types.recording import Recording

KEPT = -1  # in the place of a leaf's number: values that are no results, but are held by somebody else
STACKS = (True, False, "cat", "pad")


class Value(NamedTuple):
    """A recorded value among the results of one example.

    how: "one" is a single value; a stack of `length` values is "listed" (a reference each) or "ragged" (one for all).
    """

    spec: Spec
    how: str
    refs: tuple[int, ...]
    length: int = 1

    @staticmethod
    def of(value: Lazy, recorder: Recorder) -> Value:
        if type(value) is not Ragged:
            value = recorder.resolve(value)
            return Value(value.kind.spec, "one", (value.ref,))
        check_owner(recorder, value)
        if value.ref is not None:
            return Value(value.kind.spec, "ragged", (value.ref,), value.length)
        return Value(value.kind.spec, "listed", tuple(value.elements or ()), value.length)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Group:
    """Values of one leaf and one spec: the references to gather, and their examples; of stacks also their lengths."""

    leaf: int
    spec: Spec
    examples: tuple[int, ...]
    refs: Ints
    lengths: tuple[int, ...] | None = None
    is_ragged: bool = False  # each reference is of a whole stack, not of one of its rows
    needs_grad: bool = False  # set later, when it is known what takes part in backward

    def parts(self, tensor: Tensor) -> Sequence[Tensor]:
        return tensor.unbind(0) if self.lengths is None else tensor.split(self.lengths)  # type: ignore[no-untyped-call]

    def __repr__(self) -> str:
        rows = "" if self.lengths is None else f", {sum(self.lengths)} rows"
        return f"Group(leaf {self.leaf}: {self.spec} of {len(self.examples)} examples{rows})"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Results:
    """The results of all examples: their common structure, the leaves, and what is to be gathered."""

    structure: pytree.TreeSpec
    leaves: tuple[Sequence[Any], ...]  # by leaf, then by example
    names: Sequence[str]
    groups: tuple[Group, ...]
    kept: Sequence[Any] = ()  # what outlives the call besides results, see `kept.py`

    @staticmethod
    def collect(outputs: list[Any], recorder: Recorder | None = None) -> Results:
        """Take the results of all examples apart."""
        structure, names = structure_of(outputs[0])
        flat = [leaves_of(output, structure, i) for i, output in enumerate(outputs)]
        leaves = tuple(zip(*flat, strict=True))
        found: list[Group] = []
        if recorder is not None:
            for j, values in enumerate(leaves):
                if any(isinstance(v, Lazy) for v in values):
                    found += _groups_of_lazy(j, values, recorder)
            leaves = tuple([tuple([GATHERED if isinstance(v, Lazy) else v for v in values]) for values in leaves])
        return Results(structure, leaves, names, tuple(found))

    def keeping(self, kept: Sequence[Any], found: Sequence[Group]) -> Results:
        """The same results, and groups of values that are kept; their examples are places in `kept`."""
        return replace(self, kept=kept, groups=(*self.groups, *found))

    def renumbered(self, place: np.ndarray) -> Results:
        """The same results in a recording whose node `place[i]` was node i of this one."""
        return self.moved(lambda refs: renumber(refs, place))

    def moved(self, refs: Callable[[Ints], Ints]) -> Results:
        """The same results in another recording; `refs` says where values have gone."""
        return replace(self, groups=tuple([replace(g, refs=refs(g.refs)) for g in self.groups]))

    @property
    def refs(self) -> Ints:
        """The values that are results."""
        return np.concatenate([np.empty(0, np.int64), *[g.refs for g in self.groups]])

    def assemble(self, tensors: Sequence[Tensor], stack: bool | str) -> Any:
        """The value that the batched function returns, from the gathered tensor of each group."""
        leaves = [
            self._leaf(j, [(g, t) for g, t in zip(self.groups, tensors, strict=True) if g.leaf == j], stack)
            for j in range(len(self.names))
        ]
        if stack is False:
            examples = range(len(self.leaves[0]) if self.leaves else 0)
            return [self.structure.unflatten([leaf[i] for leaf in leaves]) for i in examples]
        return self.structure.unflatten(leaves)

    def _leaf(self, j: int, gathered: list[tuple[Group, Tensor]], stack: bool | str) -> Any:
        values = self.leaves[j]
        if not gathered and not all(isinstance(v, Tensor | Lazy | Value) for v in values):
            return list(values)
        is_whole = len(gathered) == 1 and len(gathered[0][0].examples) == len(values)
        if is_whole and (whole := _whole(*gathered[0], stack)) is not None:
            return whole
        parts = list(values)
        for group, tensor in gathered:
            for i, part in zip(group.examples, group.parts(tensor), strict=True):
                parts[i] = part
        other = next((i for i, part in enumerate(parts) if not isinstance(part, Tensor | Lazy | Value)), None)
        if other is not None and stack is not False:
            raise BatchError(
                f"{self.names[j]} is a tensor for some examples and {type(parts[other]).__name__} for example "
                f"{other}; "
                "return one kind, or use stack=False for a list"
            )
        return JOIN[stack](parts, self.names[j])

    def check(self, recording: Recording) -> None:
        """Raise an AssertionError that names the first leaf at fault, if there is one.

        Every leaf has a value for every example. Each recorded one is in exactly one group, and references lead to
        values of the group's spec.
        """
        from edbatch.recording.checking import check_results

        check_results(self, recording)

    def __repr__(self) -> str:
        examples = len(self.leaves[0]) if self.leaves else 0
        return f"Results({len(self.leaves)} leaves of {examples} examples, {len(self.groups)} groups)"


GATHERED = Value(Spec((), torch.float32, torch.device("cpu")), "one", ())  # holds the place of a recorded value
LEAVES = {Lazy, Ragged, PendingSum, Tensor}


def _is_flat(output: Any) -> bool:
    """A quick look whether an output is a plain tuple of values. If it says no, pytree looks more closely."""
    return type(output) is tuple and LEAVES.issuperset(map(type, output))


def leaves_of(output: Any, structure: pytree.TreeSpec, example: int) -> Sequence[Any]:
    if type(output) in LEAVES and structure.is_leaf():
        return (output,)
    is_like = structure.type is tuple and structure.num_children == structure.num_leaves
    if is_like and _is_flat(output) and structure.num_leaves == len(output):
        return output  # type: ignore[no-any-return]
    leaves, other = pytree.tree_flatten(output)
    check_structure(other, structure, example)
    return leaves


def check_structure(other: pytree.TreeSpec, structure: pytree.TreeSpec, example: int) -> None:
    if other != structure:
        raise BatchError(
            f"example {example} returned another structure than example 0: {other} instead of {structure}; return the "
            "same structure for every example, and a list of any length as torch.stack of it"
        )


def structure_of(output: Any) -> tuple[pytree.TreeSpec, list[str]]:
    """The structure of a result and the names of its leaves."""
    paths, structure = pytree.tree_flatten_with_path(output)
    return structure, [f"result{pytree.keystr(path)}" for path, _ in paths]


def settle(output: Any, recorder: Recorder) -> None:
    """Record what is still pending among the results when an example ends: sums, and rows stacked under no_grad."""
    if type(output) is Lazy:
        return
    for value in output if _is_flat(output) else pytree.tree_leaves(output):
        if type(value) is PendingSum:
            recorder.resolve(value)
        elif type(value) is Ragged:
            is_list(recorder, value)


def _groups_of_lazy(leaf: int, values: Sequence[Any], recorder: Recorder) -> list[Group]:
    alike = _group_alike(leaf, values, recorder)
    if alike is not None:
        return [alike]
    lazy = [recorder.outside(v) if is_tensor(v) else v for v in values]
    return groups(leaf, [Value.of(v, recorder) if isinstance(v, Lazy) else v for v in lazy])


def _group_alike(leaf: int, values: Sequence[Any], recorder: Recorder) -> Group | None:
    """The group of values that are all of one kind, or all stacks of values of one kind; None for others."""
    kind = values[0].kind if isinstance(values[0], Lazy) else None
    if kind is None or kind.recorder is not recorder or any(getattr(v, "kind", None) is not kind for v in values):
        return None
    examples = tuple(range(len(values)))
    if kind is kind.one:
        return Group(leaf, kind.spec, examples, np.array([v.ref for v in values], dtype=np.int64))
    if kind is kind.one.rows and all(v.ref is None for v in values):
        refs = [ref for v in values for ref in v.elements]
        return Group(leaf, kind.spec, examples, np.array(refs, dtype=np.int64), tuple([v.length for v in values]))
    return None


def groups(leaf: int, values: Sequence[Any]) -> list[Group]:
    """The recorded ones among the values of a leaf, in groups by spec and `how`."""
    found: dict[Any, tuple[list[int], list[int], list[int]]] = {}
    for i, value in enumerate(values):
        if type(value) is Value:
            examples, refs, lengths = found.setdefault((value.spec, value.how), ([], [], []))
            examples.append(i)
            refs += value.refs
            lengths.append(value.length)
    return [
        Group(
            leaf, spec, tuple(examples), np.array(refs, dtype=np.int64), None if how == "one" else tuple(lengths),
            how == "ragged",
        )
        for (spec, how), (examples, refs, lengths) in found.items()
    ]  # fmt: skip


def _whole(group: Group, tensor: Tensor, stack: bool | str) -> Any:
    """The assembled leaf, if one group holds all of it and its tensor can be used as it is; else None."""
    if group.lengths is None:
        if stack == "cat":
            rows = tensor.shape[1] if tensor.dim() > 1 else 1  # a value without dimensions is one row
            lengths = torch.full(tensor.shape[:1], rows, device=tensor.device)
            return (tensor.flatten(0, 1) if tensor.dim() > 1 else tensor), lengths
        return tensor if stack in (True, "pad") else None
    if stack == "cat":
        return tensor, torch.tensor(group.lengths, device=tensor.device)
    if stack is True and len(set(group.lengths)) == 1:
        return tensor.view(len(group.lengths), group.lengths[0], *tensor.shape[1:])
    return None


def _stack(parts: list[Tensor], name: str) -> Tensor:
    shapes = {tuple(p.shape) for p in parts}
    if len(shapes) > 1:
        first, second = sorted(shapes)[:2]
        raise BatchError(
            f"{name} has different shapes for different examples, e.g. {list(first)} and {list(second)}, and cannot be "
            'stacked. Use edbatch.batch(fn, stack="cat") for (rows of all examples, lengths), stack="pad" to pad with '
            "zeros, or stack=False for a list"
        )
    return torch.stack(parts)


def _cat(parts: list[Tensor], name: str) -> tuple[Tensor, Tensor]:
    rows = [p if p.dim() else p.reshape(1) for p in parts]
    if len({p.shape[1:] for p in rows}) > 1:
        raise BatchError(
            f'{name} differs between examples in more than the first dimension, so stack="cat" cannot join it; use '
            '"pad" or False'
        )
    return torch.cat(rows), torch.tensor([p.shape[0] for p in rows], device=rows[0].device)


def _pad(parts: list[Tensor], name: str) -> Tensor:
    if len({p.dim() for p in parts}) > 1:
        raise BatchError(f'{name} has different numbers of dimensions; stack="pad" cannot join it, use stack=False')
    largest = [max(sizes) for sizes in zip(*[p.shape for p in parts], strict=True)]

    def padded(part: Tensor) -> Tensor:
        missing = [large - size for large, size in zip(largest, part.shape, strict=True)]
        return torch.nn.functional.pad(part, [n for m in reversed(missing) for n in (0, m)])

    return torch.stack([padded(p) for p in parts])


JOIN: dict[Any, Any] = {True: _stack, "cat": _cat, "pad": _pad, False: lambda parts, name: parts}
