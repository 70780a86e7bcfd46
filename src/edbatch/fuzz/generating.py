"""Draws random programs: a seed and a number come in, a `RandomProgram` goes out.

A program has examples, things that they share, a model, options of `edbatch.batch`, and changes between calls.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import ChainMap
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor

from edbatch.fuzz.functions import Functions
from edbatch.fuzz.lines import TRIES, NamesInReach
from edbatch.fuzz.operations import OPERATIONS
from edbatch.fuzz.program import PRELUDE, Column, Declared, RandomProgram, Statement
from edbatch.fuzz.surroundings import (
    AROUND,
    BLOCKS,
    CHANGES,
    EXCLUDED,
    HOOKS,
    MODULES,
    PARAMETERS,
    POLICIES,
    RESULTS,
    SHAPES,
    SHARED_WRITES,
    TENSORS,
)

COMMON = ("arithmetic", "activations", "reductions", "shapes", "indices", "sums", "products", "choices")
RISKY = {  # features that edbatch often refuses, and the share of programs that have them
    "in place": 0.04, "reading": 0.01, "hooks": 0.02, "masks": 0.04, "kept": 0.05, "constants": 0.03, "infinite": 0.05,
    "fresh writes": 0.05, "rebinding": 0.05, "halves": 0.03, "modules in line": 0.05, "checkpoints": 0.02, "dicts": 0.0,
}  # fmt: skip


def generate(seed: int, number: int, excluded: Iterable[str] = EXCLUDED) -> RandomProgram:
    """Program `number` of a seed; always the same."""
    before = torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Generator(seed, number, frozenset(excluded)).program()
    finally:
        torch.set_default_dtype(before)


class Generator(Functions):
    """Draws one program."""

    def program(self) -> RandomProgram:
        rng = self.rng
        dtype = rng.choice(["float64"] * 6 + ["float32"] * 2)
        torch.set_default_dtype(getattr(torch, dtype))
        is_keyed, is_module = self.has("key", 0.15), rng.random() < 0.5
        columns = self._columns(is_keyed)
        declared = self._declared(is_module)
        scope = NamesInReach(ChainMap())
        for d in declared:
            scope.execute(f"{d.name} = {d.expression}")
        for column in columns:
            entries = f"torch.stack([{', '.join(column.entries)}])[0]" if column.is_tensor else column.entries[0]
            scope.names["call"] = 0
            scope.execute(f"{column.name} = {entries}")
        keywords = self._keywords(scope)
        self._draw_weights(is_keyed)
        functions = self.functions(scope)
        calls = self.calls_of(functions, scope)
        body = self.body(scope, rng.choice((2, 3, 4, 5, 6, 7, 7, 14)), calls)
        result = self._result(scope)
        setup = self._setup(scope, declared)
        options = self._options(is_keyed)
        changeable = [d for d in declared if d.feature != "tensor"] if is_keyed else declared  # keys freeze closures
        changes = self._changes(scope, changeable, is_module)
        around = rng.choice(self.allowed(AROUND)) if self.has("around", 0.1) else ""
        program = RandomProgram(
            self.label, tuple(columns), tuple(body), result, keywords, tuple(declared), tuple(functions), setup,
            changes, options, around, dtype, rng.choice(["all"] * 8 + ["first leaf", "first example"]),
            rng.randint(2, 4) if self.has("threads", 0.03) else 1, is_module,
        )  # fmt: skip
        program = pruned(program)
        keeps = any(d.name == "kept" for d in program.declared)  # from call to call: threads would interfere
        return replace(program, threads=1) if keeps else program

    def _columns(self, is_keyed: bool) -> list[Column]:
        rng, size = self.rng, self.rng.choice([1, 2, 2, 3, 3, 4])
        each = range(size)

        def tensors(shape: str, needs_grad: bool, differ: bool = False) -> tuple[str, ...]:
            tail = ".requires_grad_()" if needs_grad else ""
            comma = ", " if shape else ""
            other = {"3": "4", "3, 3": "2, 3", "2, 3": "1, 3"}.get(shape, shape)
            shapes = [other if differ and rng.random() < 0.4 else shape for _ in each]
            return tuple(f"randn({s}{comma}seed={rng.randrange(1000)} + 1000 * call){tail}" for s in shapes)

        found = []
        if is_keyed:
            found.append(Column("number", tuple(str(i) for i in each)))
        shape = rng.choice(SHAPES)
        found.append(Column("x", tensors(shape, rng.random() < 0.4, rng.random() < 0.1)))
        if rng.random() < 0.2 and len({e.split("seed")[0] for e in found[-1].entries}) == 1:
            found[-1] = Column("x", tuple(e.replace(".requires_grad_()", "") for e in found[-1].entries), True)
        if rng.random() < 0.6:
            found.append(Column("y", tensors(rng.choice(("3", "3", "3", "3, 3", shape)), rng.random() < 0.4)))
        if rng.random() < 0.5:
            found.append(Column("k", tuple(str(rng.randrange(3)) for _ in each)))
            self.kinds["K"].append("k")
        if rng.random() < 0.2:
            found.append(Column("s", tuple(rng.choice(("0.5", "-1.0", "2.0", "-0.0")) for _ in each)))
            self.kinds["S"].append("s")
        if rng.random() < 0.3:
            found.append(Column("flag", tuple(rng.choice(("True", "False")) for _ in each)))
            self.kinds["B"].append("flag")
        if rng.random() < 0.35:
            tail = ".requires_grad_()" if rng.random() < 0.3 and not is_keyed else ""
            moving = "" if is_keyed else " + 1000 * call"
            lists = [
                ", ".join(f"randn(3, seed={rng.randrange(1000)}{moving}){tail}" for _ in range(rng.randint(1, 4)))
                for _ in each
            ]
            found.append(Column("xs", tuple(f"[{entries}]" for entries in lists)))
            self.kinds["X"].append("xs")
        if rng.random() < 0.2:
            found.append(Column("tree", tuple(_tree(rng, rng.randint(1, 4)) for _ in each)))
        if rng.random() < 0.1:
            entries = [f"{{'h': randn(3, seed={rng.randrange(1000)}), 'n': {rng.randrange(3)}}}" for _ in each]
            found.append(Column("data", tuple(entries)))
            self.kinds["D"].append("data")
        if rng.random() < 0.2:
            found.append(Column("ids", tuple(f"torch.tensor([{rng.randrange(3)}, {rng.randrange(3)}])" for _ in each)))
        return found

    def _declared(self, is_module: bool) -> list[Declared]:
        rng = self.rng
        found = [Declared(self.name("p"), self._seeded(PARAMETERS), "parameter") for _ in range(rng.randint(0, 2))]
        if rng.random() < 0.4:
            found.append(Declared(self.name("c"), self._seeded(TENSORS), "tensor"))
        if is_module and self.has("buffer", 0.2):
            found.append(Declared(self.name("b"), f"randn(3, seed={rng.randrange(1000)})", "buffer"))
        self.shared = [d.name for d in found]
        for _ in range(rng.choice([0, 0, 1, 1, 1, 2])):
            expression, rows = rng.choice([m for m in MODULES if self.allowed(m[:1])])
            name = self.name("m")
            found.append(Declared(name, expression, "module"))
            self.modules.append((name, rows))
        if "kept" not in self.excluded:
            found.append(Declared("kept", "[]", "list"))
        return found

    def _keywords(self, scope: NamesInReach) -> tuple[tuple[str, str], ...]:
        if not self.has("keywords", 0.15):
            return ()
        expression = self._seeded(("randn(3, seed={seed})", "randn(3, 3, seed={seed}).requires_grad_()", "0.5", "2"))
        scope.execute(f"scale = {expression}")
        if not isinstance(scope.names["scale"], Tensor):
            self.kinds["S"].append("scale")
        return (("scale", expression),)

    def _seeded(self, table: tuple[str, ...]) -> str:
        return self.rng.choice(table).replace("{seed}", str(self.rng.randrange(1000)))

    def _draw_weights(self, is_keyed: bool) -> None:
        rng = self.rng
        self.weights = dict.fromkeys(COMMON, 0.5)
        others = [f for f in OPERATIONS if f not in RISKY]
        for feature in rng.sample(others, 3):
            self.weights[feature] = 2.0
        if self.kinds["X"]:
            self.weights["rows"] = 2.0
        if self.kinds["D"]:
            self.weights["dicts"] = 2.0
        if self.modules:
            self.weights["modules"] = 2.0
        is_buffer = any(name.startswith("b") for name in self.shared)
        if self.shared and rng.random() < (0.5 if is_buffer else 0.03):
            self.weights["shared writes"] = 1.0
        for block in BLOCKS:
            if rng.random() < 0.15:
                self.weights[block] = 0.7
        for feature, probability in RISKY.items():
            if rng.random() < probability and not (is_keyed and feature == "kept"):
                self.weights[feature] = 1.5
        tables = {**OPERATIONS, **BLOCKS, "modules": ("",), "shared writes": SHARED_WRITES}
        is_on = {f: f not in self.excluded and bool(self.allowed(tables[f])) for f in self.weights}
        self.weights = {f: w for f, w in self.weights.items() if is_on[f]}

    def _result(self, scope: NamesInReach) -> Statement:
        rng = self.rng
        tensors = [n for n, v in scope.names.items() if isinstance(v, Tensor) and n.startswith("v")]
        others = [n for n, v in scope.names.items() if n.startswith("v") and not isinstance(v, Tensor)]
        if not tensors:
            return Statement("{0}, {1}", ("x", "x"))
        form = rng.choice(RESULTS)
        if rng.random() < 0.5:  # all values, so that the loss reaches everything
            form = "(" + ", ".join(f"{{{i}}}" for i in range(len(tensors[:9]))) + ",)"
            return Statement(form, tuple(tensors[:9]))
        pool = [*tensors, *others, "x"] if rng.random() < 0.1 else tensors
        return Statement(form, (tensors[0], *(rng.choice(pool) for _ in range(2))))

    def _setup(self, scope: NamesInReach, declared: list[Declared]) -> tuple[Statement, ...]:
        return tuple(self._on_declared(HOOKS, scope, declared, False)) if self.has("hooks of modules", 0.07) else ()

    def _changes(
        self, scope: NamesInReach, declared: list[Declared], is_module: bool
    ) -> tuple[tuple[Statement, ...], ...]:
        calls = self.rng.choice([1] * 6 + [2] * 4 + [3])
        changes: list[tuple[Statement, ...]] = [()]
        for _ in range(calls - 1):
            is_changed = self.has("changes", 0.7)
            changes.append(tuple(self._on_declared(CHANGES, scope, declared, is_module)) if is_changed else ())
        return tuple(changes)

    def _on_declared(
        self, table: tuple[str, ...], scope: NamesInReach, declared: list[Declared], is_module: bool
    ) -> list[Statement]:
        """A row of a table, filled in for something declared."""
        modules = [d.name for d in declared if d.feature == "module"]
        tensors = [d.name for d in declared if d.feature in ("parameter", "buffer", "tensor")]
        for _ in range(TRIES):
            row = self.rng.choice(self.allowed(table))
            pool = modules if "{M}" in row else tensors if "{p}" in row else ["model"]
            if pool and (is_module or "model" not in row):
                statement = Statement(row.replace("{M}", "{0}").replace("{p}", "{0}"), (self.rng.choice(pool),))
                if "model" in row or self.is_fine(scope, statement):
                    return [statement]
        return []

    def _options(self, is_keyed: bool) -> tuple[tuple[str, str], ...]:
        rng = self.rng
        options = [("compile", "True" if self.has("compile", 1 / 12) else "False"), ("policy", rng.choice(POLICIES))]
        options.append(("stack", rng.choice(["False"] * 6 + ["True"] * 4 + ["'cat'", "'pad'"])))
        if rng.random() < 0.1:
            options.append(("exact_math", "True"))
        if is_keyed:
            options.append(("key", "lambda number, *others: number"))
            if rng.random() < 0.2:
                options.append(("debug", "True"))
        return tuple(options)


def pruned(program: RandomProgram) -> RandomProgram:
    """The program without columns, declarations and functions that nothing reads."""
    blocks: list[Iterable[Statement]] = [program.body, program.setup, *program.changes, [program.result]]
    blocks += [[*f.body, f.result] for f in program.functions]
    statements = [inner for block in blocks for s in block for inner in s.all()]
    text = "\n".join(s.form + " " + " ".join(s.operands) for s in statements)
    functions = tuple(f for f in program.functions if re.search(rf"\b{f.name}\(", text))
    text += " ".join(d.expression for f in functions for d in f.owned)
    words = set(re.findall(r"\w+", text))
    keyed = "key" in dict(program.options)
    columns = [c for c in program.columns if c.name in words or (keyed and c.name == "number")]
    declared = tuple(d for d in program.declared if d.name in words)
    columns = columns or list(program.columns[:1])
    words |= set(re.findall(r"\w+", " ".join(d.expression for d in declared)))
    prelude = tuple(name for name in PRELUDE if name in words)
    keywords = tuple(pair for pair in program.keywords if pair[0] in words)
    return replace(
        program, columns=tuple(columns), keywords=keywords, declared=declared, functions=functions, prelude=prelude
    )


def _tree(rng: random.Random, leaves: int) -> str:
    if leaves == 1:
        return str(rng.randrange(3))
    left = rng.randint(1, leaves - 1)
    return f"({_tree(rng, left)}, {_tree(rng, leaves - left)})"
