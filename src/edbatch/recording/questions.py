"""Questions to lazy values: methods and properties of tensors that compute nothing, such as `dim()` and
`requires_grad`.

In: a call on lazy values, which stand for tensors and have no numbers yet. Out: the answer, or NotImplemented if the
call is no question. Shape, dtype and device are known, and whether gradients are required. Where a value lies in memory
is known only of tensors that the user's function got or made itself. What would need the numbers is answered of *given*
values, which follow from the example's own tensors alone (see `given.py`), and refused of others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from edbatch.errors import RecordingError
from edbatch.recording.values.lazy import Lazy, Ragged
from edbatch.spec import is_tensor
from edbatch.torch_insides import pytree
from edbatch.torch_insides.modes import DisableTorchFunction

if TYPE_CHECKING:
    from edbatch.recording.recorder import Recorder

Answer = Callable[["Recorder", Any, Any, Any], Any]
DESCRIBING = (
    "device", "dim", "dtype", "element_size", "get_device", "is_complex", "is_cpu", "is_cuda", "is_floating_point",
    "is_ipu", "is_maia", "is_meta", "is_mkldnn", "is_mps", "is_mtia", "is_nested", "is_quantized", "is_same_size",
    "is_signed", "is_sparse", "is_sparse_csr", "is_vulkan", "is_xla", "is_xpu", "itemsize", "layout", "nbytes", "ndim",
    "ndimension", "nelement", "numel", "shape", "size",
)  # fmt: skip
OF_MEMORY = (
    "as_strided", "const_data_ptr", "data_ptr", "is_conj", "is_contiguous", "is_inference", "is_neg", "is_pinned",
    "is_set_to", "is_shared", "output_nr", "retains_grad", "storage", "storage_offset", "storage_type", "stride",
    "untyped_storage",
)  # fmt: skip
READING = (
    "__bool__", "__complex__", "__contains__", "__float__", "__index__", "__int__", "allclose", "equal", "is_nonzero",
    "item", "tolist",
)  # fmt: skip
SIZED_BY_NUMBERS = ("argwhere", "bincount", "nonzero", "unique", "unique_consecutive")  # shapes follow from numbers
HOOKS = ("register_hook", "register_post_accumulate_grad_hook", "retain_grad")


def ask(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer, if a call with lazy values among its arguments is a question; else NotImplemented."""
    answer = ANSWERS.get(func)
    return NotImplemented if answer is None else answer(recorder, func, args, kwargs)


def _describe(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    def stand_in(value: Any) -> Any:
        return torch.empty(value.shape, dtype=value.dtype, device=value.device)

    with DisableTorchFunction():
        args, kwargs = pytree.tree_map_only(Lazy, stand_in, (args, kwargs))
        return func(*args, **kwargs)


def _type(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return _describe(recorder, func, args, kwargs) if len(args) == 1 and not kwargs else NotImplemented


def _ask_outside(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    values = [v for v in pytree.tree_leaves((args, kwargs)) if isinstance(v, Lazy)]
    if all(type(v) is not Ragged and recorder.resolve(v).ref < 0 for v in values):
        with DisableTorchFunction():
            args, kwargs = pytree.tree_map_only(Lazy, lambda v: recorder.tensor_of(v.ref), (args, kwargs))
            answer = func(*args, **kwargs)
        if not is_tensor(answer):
            return answer
    raise RecordingError(
        f"{_name(func)} asks where and how a value lies in memory, or how it was computed, but a lazy value lies "
        "nowhere while examples are recorded; leave the question out (every value may be taken for contiguous: "
        ".contiguous() costs nothing), or put the code into a cell (edbatch.cell)"
    )


def _read(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    how = f"by {_name(func)}"
    args, kwargs = pytree.tree_map_only(Lazy, lambda value: recorder.read(value, how), (args, kwargs))
    with DisableTorchFunction():
        return func(*args, **kwargs)


def _array(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """A copy as an array that cannot be written: what is written to the memory of a column would come too late."""
    value, *rest = args
    tensor = recorder.read(value, f"by {_name(func)}")
    with DisableTorchFunction():
        like = tensor.clone().requires_grad_(_requires_grad(recorder, func, args, kwargs))
        array = func(like, *rest, **kwargs)
    array.flags.writeable = False
    return array


def _where(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    return _read(recorder, func, args, kwargs) if len(args) == 1 and not kwargs else NotImplemented


def _tensor(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """`torch.tensor(values)`: torch would ask each value for its number."""

    def number(value: Any) -> Any:
        return recorder.read(value, "by torch.tensor (torch.stack(values) reads nothing)")

    data, *rest = args
    if isinstance(data, Lazy):
        with DisableTorchFunction():
            return number(data).clone().to(**kwargs)
    data = pytree.tree_map_only(Lazy, lambda value: number(value).tolist(), data)
    return func(data, *rest, **kwargs)


def _hook(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    raise RecordingError(
        f"{_name(func)} was called on a lazy value, whose gradient is never by itself: those of all examples are "
        "computed together. Return the value and put the hook on the result, or put it on a parameter"
    )


def _requires_grad(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> bool:
    value = args[0]
    if type(value) is Ragged and value.ref is None:
        return any(map(recorder.lineage.requires_grad, value.elements or ())) and value.context.grad
    ref = value.ref if type(value) is Ragged else recorder.resolve(value).ref
    return recorder.lineage.requires_grad(ref)


def _is_leaf(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    if type(args[0]) is not Ragged and (value := recorder.resolve(args[0])).ref < 0:
        with DisableTorchFunction():
            return recorder.tensor_of(value.ref).is_leaf
    if recorder.lineage.is_own_leaf(args[0]):
        return True
    return not _requires_grad(recorder, func, args, kwargs)


def _grad_fn(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    if recorder.lineage.is_own_leaf(args[0]) or not _requires_grad(recorder, func, args, kwargs):
        return None
    return _ask_outside(recorder, func, args, kwargs)


def _grad(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    value = args[0]
    is_outside = type(value) is not Ragged and recorder.resolve(value).ref < 0
    with DisableTorchFunction():
        return recorder.tensor_of(value.ref).grad if is_outside else None


def _set_requires_grad(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """`requires_grad_()`. Of what an example has made, which no gradient leads on from, nobody can see one: such a
    value only says that it requires one, and so does what follows from it. See `Recorder.refuse_own_leaves`."""
    value = args[0]
    wanted = args[1] if len(args) > 1 else kwargs.get("requires_grad", True)
    if isinstance(value, Lazy) and _requires_grad(recorder, func, args, kwargs) == wanted:
        return value
    is_own = isinstance(value, Lazy) and type(value) is not Ragged and recorder.resolve(value).ref >= 0
    if not (is_own and wanted and value.kind.spec.is_float):
        raise RecordingError(
            "requires_grad_ was called on a lazy value, but which values have gradients follows from the parameters "
            "and the tensors given to the batched function; let those require gradients, or use detach()"
        )
    recorder.lineage.note_leaf(recorder.resolve(value).ref)
    return value


def _name(func: Any) -> str:
    name = getattr(func, "__name__", "")
    owner = getattr(func, "__self__", None)
    return getattr(owner, "__name__", "this property") if name == "__get__" else f"{name}()"


def _functions(name: str) -> list[Any]:
    """The callables that ask a question: the method or property of tensors, and torch's function, of this name."""
    found = [getattr(torch.Tensor, name, None), getattr(torch, name, None)]
    return [f if callable(f) else f.__get__ for f in found if f is not None and (callable(f) or hasattr(f, "__get__"))]


_GROUPS: tuple[tuple[tuple[str, ...], Answer], ...] = (
    (DESCRIBING, _describe), (OF_MEMORY, _ask_outside), (READING, _read), (HOOKS, _hook),
    (("__array__", "numpy"), _array), (SIZED_BY_NUMBERS, _read), (("where",), _where), (("tensor",), _tensor),
    (("result_type",), _describe),
    (("type",), _type), (("requires_grad",), _requires_grad), (("is_leaf",), _is_leaf), (("grad_fn",), _grad_fn),
    (("grad",), _grad), (("requires_grad_",), _set_requires_grad),
)  # fmt: skip
ANSWERS: dict[Any, Answer] = {f: answer for names, answer in _GROUPS for name in names for f in _functions(name)}
