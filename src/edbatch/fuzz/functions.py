"""Random functions that a model calls: cells (marked functions and modules), plain functions, recursion over trees."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from edbatch.fuzz.lines import WORLD, Lines, NamesInReach
from edbatch.fuzz.operations import OPERATIONS
from edbatch.fuzz.program import Declared, Function, Statement, function_lines

# What a function returns -> how its caller unpacks it.
TAKING = {
    "{0}": ("{t0}", ""),
    "{0}, {1}": ("{t0}, {t1}", ""),
    "{'h': {0}, 'c': {1}}": ("{t0}", "['h']"),
    "Pair({0}, {1})": ("{t0}, {t1}", ""),
    "{0}, None": ("{t0}", "[0]"),
    "{0}, {1}, 3": ("{t0}", "[0]"),
}


class Functions(Lines):
    """Draws functions and calls of them."""

    def functions(self, scope: NamesInReach) -> list[Function]:
        found = []
        if "tree" in scope.names:
            found += self._tree_function(scope)
        if self.has("cells", 0.35):
            found += self._cell(scope)
        for function in found:
            scope.execute("\n".join(function_lines(function)))
        return found

    def _tree_function(self, scope: NamesInReach) -> list[Function]:
        shared = [(n, scope.names[n]) for n in self.shared]
        tables = [n for n, t in shared if t.dim() == 2 and t.shape[0] > 2 and t.is_floating_point()]
        leaf = [d for d in self.modules if "(torch.tensor({K}))" in "".join(d[1]) and "{M}({K})" not in d[1]]
        if not tables and not leaf:
            return []
        expression = self.rng.choice(tables) if tables else f"{leaf[0][0]}.weight"
        inner = self._closure(scope)
        inner.names["a1"] = inner.names["a2"] = eval(expression, {**WORLD, **scope.names})[0]
        body = self._function_body(inner, self.rng.randint(1, 3))
        made = ["a1", "a2", *[t for s in body for t in s.targets]]
        fitting = [n for n in made if getattr(inner.names[n], "shape", None) == inner.names["a1"].shape]
        result = Statement(self.rng.choice(("{0}", "{0} + {1}")), (fitting[-1], "a2"))
        return [Function("encode", "tree", ("a1", "a2"), tuple(body), result, (Declared("leaf", expression),))]

    def _closure(self, scope: NamesInReach) -> NamesInReach:
        """The names that functions see besides their arguments."""
        return NamesInReach(ChainMap({}, {name: scope.names[name] for name in self.shared}))

    def _function_body(self, inner: NamesInReach, size: int, static: list[str] | None = None) -> list[Statement]:
        """Lines of a function's body, which use no data of the example but arguments."""
        weights, kinds = self.weights, self.kinds
        self.weights = {f: w for f, w in weights.items() if f in OPERATIONS and f not in ("kept", "rows", "modules")}
        self.kinds = {letter: [] for letter in kinds} | {"S": static or []}
        try:
            return self.body(inner, size)
        finally:
            self.weights, self.kinds = weights, kinds

    def _cell(self, scope: NamesInReach) -> list[Function]:
        rng = self.rng
        tensors = [n for n, t in scope.tensors() if t.is_floating_point()]
        given = [rng.choice(tensors) for _ in range(rng.randint(1, 3))]
        numbers = [*self.kinds["K"], *self.kinds["S"]]
        if numbers and rng.random() < 0.4:
            given.append(rng.choice(numbers))
        kind = rng.choice(("cell", "cell", "module", "plain"))
        static: tuple[str, ...] = ()
        arguments = tuple(f"a{i + 1}" for i in range(len(given)))
        owned: tuple[Declared, ...] = ()
        inner = self._closure(scope) if rng.random() < 0.3 and kind != "module" else NamesInReach(ChainMap())
        for argument, name in zip(arguments, given, strict=True):
            value = scope.names[name]
            inner.names[argument] = value if isinstance(value, Tensor) or kind == "plain" else torch.tensor(value)
        if given[-1] in numbers and kind != "plain" and rng.random() < 0.4:
            static = (arguments[-1],)
            inner.names[arguments[-1]] = scope.names[given[-1]]
        if kind == "module":
            owned = (Declared("w", f"nn.Parameter(randn(3, seed={rng.randrange(1000)}))"),)
            inner.execute(f"w = {owned[0].expression}")
        body = self._function_body(inner, rng.randint(1, 4), list(static))
        made = [t for s in body for t in s.targets if isinstance(inner.names[t], Tensor)] or list(arguments[:1])
        result = Statement(rng.choice(list(TAKING)), (made[-1], rng.choice([*made, *arguments])))
        takes_list = not static and rng.random() < 0.15
        return [Function("cell1", kind, arguments, tuple(body), result, owned, static, takes_list)]

    def calls_of(self, functions: list[Function], scope: NamesInReach) -> list[Callable[[], Statement]]:
        """Functions that draw calls, to be called when it is their turn in the body."""
        calls: list[Callable[[], Statement]] = []
        for function in functions:
            if function.kind == "tree":
                calls.append(lambda: Statement("{t0} = encode({0})", ("tree",), (self.name("v"),), feature="tree"))
            else:
                calls += [partial(self._call_of, function, scope)] * self.rng.randint(1, 3)
        return calls

    def _call_of(self, function: Function, scope: NamesInReach) -> Statement:
        """A call with any operands; if they do not fit, it is dropped."""
        tensors = [n for n, t in scope.tensors() if t.is_floating_point()]
        numbers = [*self.kinds["K"], *self.kinds["S"]]
        given = tuple(self.rng.choice(tensors[-4:] * 2 + tensors) for _ in function.arguments)
        if numbers and (function.static or self.rng.random() < 0.4):
            given = (*given[:-1], self.rng.choice(numbers))
        inside = ", ".join(f"{{{i}}}" for i in range(len(given)))
        call = f"{function.name}([{inside}])" if function.takes_list else f"{function.name}({inside})"
        left, right = TAKING[function.result.form]
        targets = tuple(self.name("v") for _ in left.split(", "))
        return Statement(f"{left} = {call}{right}", given, targets, feature="cell")
