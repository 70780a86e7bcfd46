"""Lazy values: what a batched function computes with while it is recorded, in place of tensors.

A `Lazy` is a reference to an output of a node (a recorded call), and a `Kind`: its spec (shape, dtype, device) and its
recorder. It answers shape, dtype and device at once; every operator, method and torch function on it is recorded and
gives further lazy values. `Ragged` is a stack of any number of values. `PendingSum` is a sum that is not recorded until
it is used, so that `total = total + x` in a loop becomes one n-ary sum.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Hashable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from edbatch.cells.capture.in_place import OPERATORS
from edbatch.errors import LeakedValueError, RecordingError, ValueReadError
from edbatch.layout.layout import Slot
from edbatch.spec import Spec
from edbatch.torch_insides.libraries import undefined_tensor

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder
    from edbatch.recording.types.kernel_cache import Context

IN_C = True
try:
    from edbatch.recording._calls import Method, Named, Value, set_no_tensor, set_operator
    from edbatch.recording._calls import living as living

    set_no_tensor(undefined_tensor())
    ARE_TENSORS = True
except ImportError:  # there was no C compiler at installation
    Value, Named, living, ARE_TENSORS, IN_C = object, None, None, False, False  # type: ignore[misc, assignment]
except (OSError, ValueError):  # torch's library has another name here
    ARE_TENSORS = False


READING = ("item", "tolist", "numpy", "__array__", "__contains__", "__complex__")


class Kind:
    """A spec inside one recording.

    Compared by identity, so that looking up a node's type costs no comparison of shapes. A stack of values of a kind
    has a kind of its own (`rows`), and so has a pending sum of them (`pending`; None for integers, whose sums are not
    pending). Their `one` is the kind of the single values. So `x.kind is kind` is enough to know that x is a single
    value and has a reference.
    """

    __slots__ = ("calls", "one", "pending", "recorder", "rows", "spec", "sum_key")

    def __init__(self, spec: Spec, recorder: Any, one: Kind | None = None):
        self.spec = spec
        self.recorder = recorder
        self.calls = recorder.known_calls  # for `_calls.c`, which looks for it in every call
        self.one = one or self
        self.rows = Kind(spec, recorder, self) if one is None else self
        self.pending = Kind(spec, recorder, self) if one is None and spec.dtype.is_floating_point else None
        self.sum_key = own_key("sum", self.one, Slot.SUM)  # the signature of a sum of such values


def own_key(what: str, kind: Kind, detail: Hashable) -> tuple[Hashable, ...]:
    """The key of a node that we add ourselves, such as a sum; keys of the user's calls begin with their target."""
    return what, kind, detail


class Lazy(Value):
    """A value that will exist once the whole mini-batch has been recorded."""

    __slots__ = ("kind", "ref")
    __array_ufunc__ = None  # numpy's numbers leave arithmetic with lazy values to us
    ref: Any  # an int; for a Ragged or PendingSum that is not recorded yet see their docstrings

    kind: (
        Kind  # no __init__: setting two slots from outside takes half the time, and recording makes very many of these
    )

    if ARE_TENSORS:

        @property  # type: ignore[misc]
        def __class__(self) -> type:
            """`isinstance(value, torch.Tensor)` and `torch.is_tensor(value)` are true; `type(value)` is what it is."""
            return torch.Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size(self.kind.spec.shape)

    @property
    def dtype(self) -> torch.dtype:
        return self.kind.spec.dtype

    @property
    def device(self) -> torch.device:
        return self.kind.spec.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def dim(self) -> int:
        return len(self.shape)

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    @classmethod
    def __torch_function__(cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return owner(args, kwargs or {}).torch_function(original(func), args, kwargs or {})

    def __setitem__(self, key: Any, value: Any) -> None:
        self.kind.recorder.torch_function(torch.Tensor.__setitem__, (self, key, value), {})

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a 0-d value")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (operator.getitem(self, i) for i in range(len(self)))  # type: ignore[call-overload]

    def __bool__(self) -> bool:
        return bool(self.kind.recorder.read(self, "as a truth value (if, while, and, or, not)"))

    def __int__(self) -> int:
        return int(self.kind.recorder.read(self, "by int()"))

    def __float__(self) -> float:
        return float(self.kind.recorder.read(self, "by float()"))

    def __index__(self) -> int:
        return operator.index(self.kind.recorder.read(self, "as an index or a range"))

    def __format__(self, form: str) -> str:
        return format(self.kind.recorder.read(self, "by format()"), form) if form else repr(self)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kind.spec})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        if isinstance(self.ref, torch.Tensor):  # its call is over
            return self.ref.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]
        raise TypeError(
            "a lazy value lives only inside its batched call and cannot be pickled or copied; return it instead"
        )


class Ragged(Lazy):
    """A stack of `length` values of one kind; `ref` is None while it is only a list of them.

    elements: the references of the listed values. context: the modes (grad, autocast) in which it was made.
    """

    __slots__ = ("context", "elements", "length", "taken", "whole")
    length: int
    elements: list[int] | None
    whole: Any  # the same values as one value of fixed length, once somebody needed that
    context: Context
    taken: dict[int, int] | None  # how often each of its elements was taken, which shares its memory in torch

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.length, *self.kind.spec.shape))


class PendingSum(Lazy):
    """A sum that is not recorded yet. Once it is used it is recorded and becomes a plain `Lazy`.

    Until then `ref` is (terms, count, context): the first `count` references of a list that a longer sum may have
    grown since.
    """

    __slots__ = ()


set_class: Callable[[Lazy, type], None] = object.__dict__["__class__"].__set__


def lazy(ref: int, kind: Kind) -> Lazy:
    """A value that is the output `ref` of a recorded node."""
    value = Lazy()
    value.ref = ref
    value.kind = kind
    return value


def rows_of(ref: int | None, kind: Kind, length: int, elements: list[int] | None = None) -> Ragged:
    """Rows of values of a kind that are the output `ref` of a recorded node, or so far only a list of values."""
    value = Ragged()
    value.ref, value.kind, value.length, value.elements, value.whole = ref, kind.rows, length, elements, None
    value.context, value.taken = kind.recorder.context, None
    return value


def copied(value: Lazy) -> Lazy:
    """The same value as another object."""
    other = type(value)()
    names = Lazy.__slots__ + (Ragged.__slots__ if type(value) is Ragged else ())
    for name in names:
        setattr(other, name, getattr(value, name))
    return other


def pending(terms: list[int], context: Any, kind: Kind) -> PendingSum:
    """The sum of the values that are now in a list of references, all of one kind."""
    value = PendingSum()
    value.ref = (terms, len(terms), context)
    value.kind = kind.pending  # type: ignore[assignment]
    return value


def others_alive(value: Lazy, refs: Container[int]) -> bool:
    """Whether another lazy value that is alive has one of these references; True if that cannot be found out."""
    if living is None:
        return True
    recorder = value.kind.recorder
    found = [other for other in living() if other is not value and type(other) is Lazy and hasattr(other, "kind")]
    return any(other.kind.recorder is recorder and other.ref in refs for other in found)


def original(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch; not what stands in its place while somebody records, and where it may have found itself."""
    return function.__wrapped__ if type(function) is Named else function


def owner(args: Any, kwargs: Any) -> Recorder:
    """The recorder of the first lazy value among arguments."""
    stack = [*args, *kwargs.values()]
    for item in stack:  # grows while it is walked
        if isinstance(item, Lazy):
            return item.kind.recorder  # type: ignore[no-any-return]
        if isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, dict):
            stack.extend(item.values())
    raise TypeError("no lazy value among the arguments")


def reading(value: Lazy, how: str) -> RecordingError:
    if not value.kind.recorder.is_open:
        return leaked(value)
    return ValueReadError(
        f"a lazy value {value.kind.spec} was read {how}, but it depends on parameters or random numbers, and such "
        "values do not exist while examples are recorded. Decide by the example's own data (what is computed from "
        "columns alone can be read), use torch.where, or put the decision into a cell (edbatch.cell), which then runs "
        "one by one"
    )


def leaked(value: Lazy) -> LeakedValueError:
    return LeakedValueError(
        f"a lazy value {value.kind.spec} was used outside the call of the batched function that made it. Lazy "
        "values live only inside that call: return them from the function, and do not keep them on self, in globals "
        "or in the examples"
    )


def _add(self: Lazy, other: Any) -> Any:
    return self.kind.recorder.plus(self, other)


def _add_to(self: Lazy, other: Any) -> Any:
    """`other + self`, where other is no lazy value. Python's sum() begins with 0."""
    kind = self.kind
    if type(other) is int and other == 0 and type(self) is not Ragged and kind.recorder.sums_grow_in is not None:
        if kind.spec.dtype is torch.bool or kind.recorder.drops_grad(self):  # 0 + mask is a number
            return kind.recorder.plus(other, self)
        if type(self) is Lazy and kind.pending is not None:
            return pending([self.ref], kind.recorder.sums_grow_in, kind)
        same = Lazy() if type(self) is Lazy else PendingSum()
        same.kind, same.ref = kind, self.ref
        return same
    return kind.recorder.plus(other, self)


def _getitem(self: Lazy, key: Any) -> Any:
    return self.kind.recorder.getitem(self, key)


def _operator(name: str, function: Callable[..., Any], forward: Any, reflected: Any = None) -> None:
    """An operator of lazy values: in C a slot of their type, which hands on the calls that are not known there."""
    if IN_C:
        are_data = name in ARITHMETIC
        ways = [way and Method(function, way, are_data, True, False) for way in (forward, reflected)]
        set_operator(name, *ways)
        return
    setattr(Lazy, f"__{name}__", forward)
    if reflected is not None:
        setattr(Lazy, f"__r{name}__", reflected)


def _binary(name: str, function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def forward(self: Lazy, other: Any) -> Any:
        if other is None:
            return NotImplemented
        return self.kind.recorder.torch_function(function, (self, other), {})

    def reflected(self: Lazy, other: Any) -> Any:
        return self.kind.recorder.torch_function(function, (other, self), {})

    return forward, reflected


def _in_place(name: str) -> None:
    """`value += other`: the object itself becomes the result, so that all variables see it, as in torch."""
    plain = getattr(operator, f"__{name}__")

    def method(self: Lazy, other: Any) -> Any:
        return self.kind.recorder.write(self, plain(self, other))

    setattr(Lazy, f"__i{name}__", method)


def _unary(function: Callable[[Any], Any]) -> Any:
    def forward(self: Lazy) -> Any:
        return self.kind.recorder.torch_function(function, (self,), {})

    return forward


ARITHMETIC = ("add", "sub", "mul", "truediv")  # operators whose numbers are data of the call
_operator("add", operator.add, _add, _add_to)
_operator("getitem", operator.getitem, _getitem)
for _name in ("sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift"):
    _function = getattr(operator, f"__{_name}__")
    _operator(_name, _function, *_binary(_name, _function))
for _name in OPERATORS:
    _in_place(_name)
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Lazy, f"__{_name}__", _binary(_name, getattr(operator, _name))[0])
for _name in ("neg", "pos", "abs", "invert"):
    _function = getattr(operator, f"__{_name}__")
    _operator(_name, _function, _unary(_function))


def _reader(name: str) -> None:
    def method(self: Lazy, *args: Any, **kwargs: Any) -> Any:
        return self.kind.recorder.torch_function(getattr(torch.Tensor, name), (self, *args), kwargs)

    setattr(Lazy, name, method)


def _attribute(name: str, attribute: Any) -> None:
    """A method or property of torch.Tensor. Not by __getattr__: Python then could not specialise access to slots."""
    is_method = callable(attribute)
    function = attribute if is_method else attribute.__get__

    def method(self: Lazy, *args: Any, **kwargs: Any) -> Any:
        return self.kind.recorder.torch_function(function, (self, *args), kwargs)

    way = Method(function, method, name in DATA_METHODS, True, False) if IN_C else method
    setattr(Lazy, name, way if is_method else property(way))


DATA_METHODS = ("add", "sub", "mul", "div")
for _name in READING:
    _reader(_name)
for _name in dir(torch.Tensor):
    if not _name.startswith("_") and not hasattr(Lazy, _name):
        _attribute(_name, getattr(torch.Tensor, _name))
