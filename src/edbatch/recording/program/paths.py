"""Names for the modules, tensors and functions of the user's program: the path from the batched function to them.

A registered module or tensor is called by its path in `state_dict`. What is not registered is called by the variables
that lead to it: a closure's or global's name, an attribute, a key or position in a container. So a name is the same in
every process that runs the same program, whatever is used first. The exception is what is made while a function is
being recorded: perhaps it is found only in the next recording.
"""

from __future__ import annotations

import enum
import functools
import sys
from collections import deque
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import resolve_name
from torch.utils.weak import WeakIdKeyDictionary

from edbatch.recording.program.marking import CellFunction
from edbatch.spec import Spec
from edbatch.torch_insides.modules import BUFFERS, CHILDREN, PARAMETERS

LIBRARIES = sys.stdlib_module_names - {"__main__"} | {"torch", "numpy", "edbatch"}
CONTAINERS = (list, tuple, dict)
FUNCTIONS = FunctionType | MethodType | functools.partial | CellFunction  # type: ignore[type-arg]
NAMED = nn.Module | torch.Generator | type | BuiltinFunctionType | FUNCTIONS
OWN = frozenset(vars(nn.Module()))  # the attributes of every module
MAX_STEPS = 6  # variables on the way from the function to something that is registered nowhere
MAX_ENTRIES = 100  # of a container; a larger one that does not begin with a module or parameter holds data
MAX_OBJECTS = 10_000


class Paths:
    """The paths of everything that can be reached from a function, found at first need."""

    def __init__(self, root: Any):
        self._root = root
        self._path_of: MutableMapping[Any, str] = WeakIdKeyDictionary()
        self._out_of_reach: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self._may_look = True

    def start(self) -> None:
        """Called when a recording begins: it may search once more, for what was made since the last one."""
        self._may_look = True

    def known(self, value: Any) -> str | None:
        """The path of a value, if it was found before."""
        if not self._path_of and self._may_look:
            self._look()
        return self._path_of.get(value) or None

    def of(self, value: Any) -> str | None:
        """The path of a module, tensor, function or generator; None when no variable leads to it."""
        found = self._path_of.get(value)
        if found is None and self._may_look and value not in self._out_of_reach:
            self._look()
            found = self._path_of.get(value)
            if found is None:
                self._out_of_reach[value] = True
        return found or None

    def _look(self) -> None:
        self._path_of = find_paths(self._root)
        self._may_look = False

    def name_of(self, value: Any) -> str:
        """A module's or generator's path or class, a tensor's path or spec, a function's path or own name."""
        if isinstance(value, nn.Module | torch.Generator):
            return self.of(value) or type(value).__name__
        if isinstance(value, torch.Tensor):
            return self.of(value) or repr(Spec.of(value))
        module = getattr(value, "__module__", None)  # built-in methods have none
        return (_library_name(value) if _is_library(module) else None) or self._function_name(value)

    def _function_name(self, function: Any) -> str:
        owner = getattr(function, "__self__", None)
        if isinstance(function, MethodType) or (isinstance(function, BuiltinFunctionType) and isinstance(owner, type)):
            cls = owner if isinstance(owner, type) else type(owner)
            return f"{self.name_of(owner) if isinstance(owner, nn.Module) else cls.__name__}.{function.__name__}"
        if isinstance(function, FUNCTIONS) and (path := self.of(function)) is not None:
            return path
        if isinstance(function, CellFunction):
            return self.name_of(function.function)
        name = getattr(function, "__qualname__", None) or type(function).__qualname__
        return name.replace("<locals>.", "").replace("<lambda>", "lambda")


def _library_name(function: Any) -> str | None:
    """The name of a function of a library, above all of torch."""
    name: str | None = resolve_name(function)
    if name is not None:
        return name.removesuffix(".__get__").removeprefix("torch.nn.").replace("torch.Tensor.", "Tensor.")
    is_method = isinstance(getattr(function, "__self__", None), type)  # such as `apply` of a user's autograd function
    if isinstance(function, FunctionType | BuiltinFunctionType) and not is_method:
        name = function.__qualname__.removeprefix("_VariableFunctionsClass.")  # where torch keeps its own
        return f"{(function.__module__ or '').rpartition('.')[2].strip('_')}.{name}"
    return None


def find_paths(root: Any) -> MutableMapping[Any, str]:
    """The shortest paths to all that can be reached from `root`; what is registered in a module is looked at first.

    Only variables, attributes and entries of containers are read; no property or function of the user's is called.
    """
    seen: dict[int, tuple[Any, str]] = {}
    taken: set[str] = set()
    queue = deque([("", root, "", 0)])
    while queue:
        path, value, parent, steps = queue.popleft()
        if id(value) in seen:
            continue
        with suppress(Exception):  # an object that cannot be read leads nowhere
            if not _is_of_interest(value):
                continue
            while path in taken and path not in ("", parent):  # a partial and its function have one path
                path += "'"
            taken.add(path)
            seen[id(value)] = value, path
            if steps < MAX_STEPS and len(seen) < MAX_OBJECTS:
                queue.extend((name, child, path, steps + 1) for name, child in _children(path, value))
            if _is(value, nn.Module):
                tables = [dict.items(_dict_of(value)[t]) for t in (PARAMETERS, BUFFERS, CHILDREN)]
                named = [(_join(path, name), child, path, steps) for table in tables for name, child in table]
                queue.extendleft(reversed(named))
    paths: MutableMapping[Any, str] = WeakIdKeyDictionary()
    for value, path in seen.values():
        if _is(value, nn.Module | torch.Tensor | torch.Generator | FUNCTIONS):
            paths[value] = path
    return paths


def _is(value: Any, kind: Any) -> bool:
    """`isinstance`, but a proxy, which has the `__class__` of another object, is not asked for it."""
    return issubclass(type(value), kind)


def _dict_of(value: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return found


def _join(path: str, name: Any) -> str:
    return f"{path}.{name}" if path else str(name)


def _key(key: Any) -> str:
    if _is(key, enum.Enum):
        return str(key._name_)
    if _is(key, tuple):
        return ",".join(map(_key, tuple.__iter__(key)))
    if _is(key, str):
        return str.__str__(key)
    return str(key) if type(key) in (int, bool) else type(key).__name__


def _is_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in LIBRARIES


def _is_of_interest(value: Any) -> bool:
    """Whether a value has a path, or leads to what has one."""
    for kind in CONTAINERS:  # by methods of list, tuple and dict: a subclass may replace them
        if _is(value, kind):
            first = next(iter(dict.values(value) if kind is dict else kind.__iter__(value)), None)
            return bool(kind.__len__(value) <= MAX_ENTRIES) or _is(first, nn.Module | nn.Parameter)
    if _is(value, nn.Module | torch.Tensor | torch.Generator | MethodType | functools.partial | CellFunction):
        return True
    if _is(value, FunctionType | type):
        return not _is_library(value.__module__)
    return not _is_library(type(value).__module__)


def _children(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What a value leads to, except what is registered in a module; each with its path."""
    if _is(value, dict):
        yield from ((_join(path, _key(key)), child) for key, child in list(dict.items(value)))
    elif _is(value, list | tuple):
        entries = list.__iter__(value) if _is(value, list) else tuple.__iter__(value)
        yield from ((_join(path, i), child) for i, child in enumerate(entries))
    elif _is(value, FunctionType):
        yield from _variables(path, value)
    elif _is(value, MethodType):
        yield from ((path, value.__self__), (path, value.__func__))
    elif _is(value, functools.partial):
        yield from ((path, value.func), (path, value.args), (path, value.keywords))
    elif _is(value, CellFunction):
        yield path, value.function
    elif _is(value, type):
        yield from _class_variables(path, value)
    elif not _is(value, torch.Tensor):
        yield from _attributes(path, value)


def _attributes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The attributes of an object; of a library's object only those the user may have put in: modules, functions."""
    is_library = _is_library(type(value).__module__)
    for name, child in list(_dict_of(value).items()):
        if name not in OWN and (not is_library or _is(child, nn.Module | FUNCTIONS)):
            yield _join(path, name), child
    yield "", type(value)  # its methods name globals


def _class_variables(path: str, cls: type) -> Iterator[tuple[str, Any]]:
    for name, child in list(vars(cls).items()):
        function = child.fget if _is(child, property) else child
        function = function.__func__ if _is(function, staticmethod | classmethod) else function
        function = function.function if _is(function, CellFunction) else function
        if _is(function, FunctionType):  # a method: called by its own name, not by a path
            yield from _variables(path, function)
        elif not name.startswith("__"):
            yield _join(path, name), child
    yield from (("", base) for base in cls.__bases__)


def _variables(path: str, function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables from outside that a function names: its closure, its defaults, globals, attributes of modules."""
    yield path, getattr(function, "__wrapped__", None)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            yield _join(path, name), cell.cell_contents
    defaults = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    yield from ((_join(path, n), v) for n, v in zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    yield from ((_join(path, name), value) for name, value in (function.__kwdefaults__ or {}).items())
    names = list(_names(function.__code__))
    for name in names:
        value = function.__globals__.get(name)
        if _is(value, ModuleType):
            yield from ((f"{name}.{n}", vars(value)[n]) for n in names if n in vars(value))
        else:
            yield name, value


def _names(code: CodeType) -> Iterator[str]:
    """The globals and attributes that code names, that of functions and comprehensions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
