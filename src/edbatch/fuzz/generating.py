"""Random programs. A line is drawn from the tables and tried with plain torch on the first example; what torch does not
like is drawn again. So programs are right by construction, and shapes need no rules.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import ChainMap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edbatch
from edbatch.fuzz.comparing import random_tensor
from edbatch.fuzz.operations import OPERATIONS
from edbatch.fuzz.program import PRELUDE, Column, Declared, Function, Program, Statement, function_lines, line_of
from edbatch.fuzz.surroundings import (
    AROUND,
    BLOCKS,
    BUFFER_WRITES,
    CHANGES,
    EXCLUDED,
    HOOKS,
    MODULES,
    PARAMETERS,
    POLICIES,
    RESULTS,
    SHAPES,
    TENSORS,
)

COMMON = ("arithmetic", "activations", "reductions", "shapes", "indices", "sums", "products", "choices")
RISKY = {  # often refused, so they are rare: in so many programs
    "in place": 0.04, "reading": 0.01, "hooks": 0.02, "masks": 0.04, "kept": 0.05, "constants": 0.03, "infinite": 0.05,
    "fresh writes": 0.05, "rebinding": 0.05, "halves": 0.03, "modules in line": 0.05,
}  # fmt: skip
NUMBERS = ("2", "3", "-1", "0", "0.5", "-1.5", "1.0", "0.0", "-0.0", "0.25", "1", "True")
POSITIVE = ("2", "0.5", "3", "1.5", "1")
LARGEST_SIZE, LARGEST_VALUE = 100, 1e4
TRIES = 12


class Slot(NamedTuple):
    """How a row of a table was filled in."""

    form: str
    operands: tuple[str, ...]


def generate(seed: int, number: int, excluded: Iterable[str] = EXCLUDED) -> Program:
    """Program `number` of a seed: the same one always."""
    before = torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return Generator(seed, number, frozenset(excluded)).program()
    finally:
        torch.set_default_dtype(before)


class Scope:
    """The names that a line may use, with the values of the first example."""

    def __init__(self, names: ChainMap[str, Any], heads: tuple[str, ...] = ()):
        self.names = names
        self.heads = heads  # of the blocks around, where they change what lines do

    def inner(self, head: str = "") -> Scope:
        return Scope(self.names.new_child(), (*self.heads, head) if head.startswith("with") else self.heads)

    def tensors(self) -> list[tuple[str, Tensor]]:
        return [(name, value) for name, value in self.names.items() if isinstance(value, Tensor)]

    def execute(self, line: str) -> None:
        text = line
        for depth, head in enumerate(reversed(self.heads)):
            text = head + "\n" + "\n".join("  " + inner for inner in text.splitlines()) + ("\n" if depth else "")
        before = {**WORLD, **self.names}
        world = dict(before)
        exec(text, world)
        del world["__builtins__"]
        self.names.update({n: v for n, v in world.items() if n not in before or before[n] is not v})


WORLD: dict[str, Any] = {"torch": torch, "nn": nn, "F": F, "edbatch": edbatch, "randn": random_tensor, "NamedTuple": NamedTuple}
for _text in PRELUDE.values():
    exec(_text, WORLD)
del WORLD["__builtins__"]


class Generator:
    """Draws one program."""

    def __init__(self, seed: int, number: int, excluded: frozenset[str]):
        self.rng = random.Random(f"{seed}/{number}")
        self.label = f"{seed}/{number}"
        self.excluded = excluded
        self.count = 0
        self.modules: list[tuple[str, tuple[str, ...]]] = []
        self.shared: list[str] = []
        self.kinds: dict[str, list[str]] = {"K": [], "S": [], "B": [], "X": []}
        self.weights: dict[str, float] = {}

    def has(self, feature: str, probability: float) -> bool:
        return self.rng.random() < probability and feature not in self.excluded

    def allowed(self, rows: Sequence[str]) -> Sequence[str]:
        """The rows of a table that hold nothing that is switched off."""
        return [row for row in rows if not any(text in row for text in self.excluded)]

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def program(self) -> Program:
        rng = self.rng
        dtype = rng.choice(["float64"] * 6 + ["float32"] * 2)
        torch.set_default_dtype(getattr(torch, dtype))
        is_keyed, is_module = self.has("key", 0.15), rng.random() < 0.5
        columns = self._columns(is_keyed)
        declared = self._declared(is_module)
        scope = Scope(ChainMap())
        for d in declared:
            scope.execute(f"{d.name} = {d.expression}")
        for column in columns:
            entries = f"torch.stack([{', '.join(column.entries)}])[0]" if column.is_tensor else column.entries[0]
            scope.names["call"] = 0
            scope.execute(f"{column.name} = {entries}")
        self._draw_weights(scope, is_keyed)
        functions = self._functions(scope)
        calls = self._calls_of(functions, scope)
        body = self._body(scope, rng.randint(2, 7), calls)
        result = self._result(scope, columns)
        setup = self._setup(scope, declared)
        options = self._options(is_keyed)
        changes = self._changes(scope, declared, is_module)
        around = rng.choice(self.allowed(AROUND)) if self.has("around", 0.1) else ""
        program = Program(
            self.label, tuple(columns), tuple(body), result, tuple(declared), tuple(functions), setup, changes, options,
            around, dtype, rng.choice(["all"] * 8 + ["first leaf", "first example"]),
            rng.randint(2, 4) if self.has("threads", 0.03) else 1, is_module,
        )  # fmt: skip
        return pruned(program)

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

    def _seeded(self, table: tuple[str, ...]) -> str:
        return self.rng.choice(table).replace("{seed}", str(self.rng.randrange(1000)))

    def _draw_weights(self, scope: Scope, is_keyed: bool) -> None:
        rng = self.rng
        self.weights = {feature: 0.5 for feature in COMMON}
        others = [f for f in OPERATIONS if f not in RISKY]
        for feature in rng.sample(others, 3):
            self.weights[feature] = 2.0
        if self.kinds["X"]:
            self.weights["rows"] = 2.0
        if self.modules:
            self.weights["modules"] = 2.0
        if any(name.startswith("b") for name in self.shared) and rng.random() < 0.5:
            self.weights["buffer writes"] = 1.0
        for block in BLOCKS:
            if rng.random() < 0.15:
                self.weights[block] = 0.7
        for feature, probability in RISKY.items():
            if rng.random() < probability and not (is_keyed and feature == "kept"):
                self.weights[feature] = 1.5
        tables = {**OPERATIONS, **BLOCKS, "modules": ("",), "buffer writes": BUFFER_WRITES}
        is_on = {f: f not in self.excluded and bool(self.allowed(tables[f])) for f in self.weights}
        self.weights = {f: w for f, w in self.weights.items() if is_on[f]}

    def _body(self, scope: Scope, size: int, calls: list[Statement] | None = None) -> list[Statement]:
        body: list[Statement] = []
        waiting = list(calls or [])
        for _ in range(size):
            statement = self._statement(scope)
            if statement is not None:
                body.append(statement)
            if waiting and self.rng.random() < 0.6:
                body += self._accepted(scope, waiting.pop(0))
        for statement in waiting:
            body += self._accepted(scope, statement)
        return body

    def _accepted(self, scope: Scope, statement: Statement) -> list[Statement]:
        return [statement] if self._is_fine(scope, statement) else []

    def _statement(self, scope: Scope) -> Statement | None:
        features, weights = list(self.weights), list(self.weights.values())
        for _ in range(TRIES):
            feature = self.rng.choices(features, weights)[0]
            if feature in BLOCKS:
                block = self._block(scope, feature)
                if block is not None:
                    return block
                continue
            statement = self._drawn(scope, feature)
            if statement is not None and self._is_fine(scope, statement):
                return statement
        return None

    def _drawn(self, scope: Scope, feature: str) -> Statement | None:
        """A line that is not tried yet."""
        row, given = "", {}
        if feature == "modules":
            name, rows = self.rng.choice(self.modules)
            row, given = self.rng.choice(self.allowed(rows) or rows), {"M": name}
        elif feature == "buffer writes":
            row, given = self.rng.choice(self.allowed(BUFFER_WRITES)), {"p": next(n for n in self.shared if n.startswith("b"))}
        else:
            row = self.rng.choice(self.allowed(OPERATIONS[feature]))
        slot = self._filled(row, scope, given)
        if slot is None:
            return None
        targets = tuple(self.name("v") for _ in set(re.findall(r"\{t\d\}", slot.form)))
        if not targets and not _is_action(slot.form, feature):
            return Statement("{t0} = " + slot.form, slot.operands, (self.name("v"),), feature=feature)
        return Statement(slot.form, slot.operands, targets, feature=feature)

    def _filled(self, row: str, scope: Scope, given: dict[str, str]) -> Slot | None:
        operands: list[str] = []

        def fill(match: re.Match[str]) -> str:
            letter = match[1]
            literal = self._literal(letter, operands, scope)
            if literal is not None:
                return literal
            fitting = [given[letter]] if letter in given else self._fitting(letter, operands, scope)
            operands.append(self.rng.choice(fitting[-3:] if self.rng.random() < 0.5 else fitting))
            return f"{{{len(operands) - 1}}}"

        try:
            return Slot(re.sub(r"\{([A-Za-z])\}", fill, row), tuple(operands))
        except LookupError:  # nothing fits
            return None

    def _fitting(self, letter: str, operands: list[str], scope: Scope) -> list[str]:
        if letter in self.kinds:
            return self.kinds[letter]
        first = scope.names.get(operands[0]) if operands else None
        return [name for name, t in scope.tensors() if _fits(letter, t, first)]

    def _literal(self, letter: str, operands: list[str], scope: Scope) -> str | None:
        if letter == "n":
            return self.rng.choice(NUMBERS)
        if letter == "N":
            return self.rng.choice(POSITIVE)
        if letter not in "dke":
            return None
        first = scope.names[operands[0]]
        if letter == "d":
            return str(self.rng.randrange(-first.dim(), first.dim())) if first.dim() else "0"
        size = max(first.shape[0 if letter == "k" else -1] if first.dim() else 1, 1)
        return str(self.rng.randrange(-size, size))

    def _is_fine(self, scope: Scope, statement: Statement) -> bool:
        """Try a line on the first example; its names are kept if torch and the limits allow it."""
        before = dict(scope.names.maps[0])
        try:
            scope.execute(line_of(statement))
            if all(_is_moderate(scope.names[t], "infinite" in self.weights) for t in statement.targets):
                return True
        except Exception:
            pass
        scope.names.maps[0].clear()
        scope.names.maps[0].update(before)
        return False

    def _block(self, scope: Scope, feature: str) -> Statement | None:
        slot = self._filled(self.rng.choice(self.allowed(BLOCKS[feature])), scope, {})
        if slot is None or len(scope.heads) > 1:
            return None
        targets = (self.name("w"),) if "{t0}" in slot.form else ()
        head = Statement(slot.form, slot.operands, targets, feature=feature)
        inner = scope.inner(line_of(head))
        for target in targets:
            inner.names[target] = scope.names[slot.operands[0]][0]
        body = [s for s in (self._statement(inner) for _ in range(self.rng.randint(1, 2))) if s is not None]
        if slot.form.startswith("with"):
            scope.names.update(inner.names.maps[0])
        elif not self._rebind(scope, inner, body):
            return None
        return Statement(head.form, head.operands, head.targets, tuple(body), feature) if body else None

    def _rebind(self, scope: Scope, inner: Scope, body: list[Statement]) -> bool:
        """Let a block that may not run, or run often, change a name from before it."""
        ours = [name for name, _ in scope.tensors() if name.startswith("v")]
        made = [target for s in body for target in s.targets]
        self.rng.shuffle(ours)
        for outer in ours[:3]:
            for name in reversed(made):
                a, b = scope.names[outer], inner.names.get(name)
                if isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype:
                    form = self.rng.choice(("{t0} = {0} + {1}", "{t0} = {1}", "{t0} = {0} * {1}"))
                    body.append(Statement(form, (outer, name), (outer,)))
                    return True
        return False

    def _functions(self, scope: Scope) -> list[Function]:
        found = []
        if "tree" in scope.names:
            found += self._tree_function(scope)
        if self.has("cells", 0.35):
            found += self._cell(scope)
        for function in found:
            scope.execute("\n".join(function_lines(function)))
        return found

    def _tree_function(self, scope: Scope) -> list[Function]:
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
        result = Statement("{0} + {1}", (fitting[-1], "a2")) if self.rng.random() < 0.5 else Statement("{0}", (fitting[-1],))
        return [Function("encode", "tree", ("a1", "a2"), tuple(body), result, (Declared("leaf", expression),))]

    def _closure(self, scope: Scope) -> Scope:
        """What functions see besides their arguments."""
        return Scope(ChainMap({}, {name: scope.names[name] for name in self.shared}))

    def _function_body(self, inner: Scope, size: int) -> list[Statement]:
        """A body of what functions hold: no data of the example that is not an argument."""
        weights, kinds = self.weights, self.kinds
        self.weights = {f: w for f, w in weights.items() if f in OPERATIONS and f not in ("kept", "rows", "modules")}
        self.kinds = {letter: [] for letter in kinds}
        try:
            return self._body(inner, size)
        finally:
            self.weights, self.kinds = weights, kinds

    def _cell(self, scope: Scope) -> list[Function]:
        rng = self.rng
        tensors = [n for n, t in scope.tensors() if t.is_floating_point()]
        given = [rng.choice(tensors) for _ in range(rng.randint(1, 3))]
        numbers = [*self.kinds["K"], *self.kinds["S"]]
        if numbers and rng.random() < 0.4:
            given.append(rng.choice(numbers))
        kind = rng.choice(("cell", "cell", "module", "plain"))
        arguments = tuple(f"a{i + 1}" for i in range(len(given)))
        owned: tuple[Declared, ...] = ()
        inner = self._closure(scope) if rng.random() < 0.3 and kind != "module" else Scope(ChainMap())
        for argument, name in zip(arguments, given, strict=True):
            value = scope.names[name]
            inner.names[argument] = value if isinstance(value, Tensor) or kind == "plain" else torch.tensor(value)
        if kind == "module":
            owned = (Declared("w", f"nn.Parameter(randn(3, seed={rng.randrange(1000)}))"),)
            inner.execute(f"w = {owned[0].expression}")
        body = self._function_body(inner, rng.randint(1, 4))
        made = [t for s in body for t in s.targets if isinstance(inner.names[t], Tensor)] or list(arguments[:1])
        result = rng.choice(("{0}", "{0}", "{0}, {1}", "{'h': {0}, 'c': {1}}", "Pair({0}, {1})", "{0}, None", "{0}, {1}, 3"))
        operands = (made[-1], rng.choice([*made, *arguments]))
        return [Function("cell1", kind, arguments, tuple(body), Statement(result, operands), owned)]

    def _calls_of(self, functions: list[Function], scope: Scope) -> list[Statement]:
        calls = []
        for function in functions:
            if function.kind == "tree":
                calls.append(Statement("{t0} = encode({0})", ("tree",), (self.name("v"),), feature="tree"))
                continue
            for _ in range(self.rng.randint(1, 3)):
                slot = self._call_of(function, scope)
                if slot is not None:
                    calls.append(slot)
        return calls

    def _call_of(self, function: Function, scope: Scope) -> Statement | None:
        """A call with any operands; if they do not fit, it is dropped later."""
        tensors = [n for n, t in scope.tensors() if t.is_floating_point()]
        numbers = [*self.kinds["K"], *self.kinds["S"]]
        given = tuple(self.rng.choice(tensors) for _ in function.arguments)
        if numbers and self.rng.random() < 0.4:
            given = (*given[:-1], self.rng.choice(numbers))
        inside = ", ".join(f"{{{i}}}" for i in range(len(given)))
        form = function.result.form
        call = f"{function.name}({inside})"
        if form.startswith("{'"):
            return Statement(f"{{t0}} = {call}['h']", given, (self.name("v"),), feature="cell")
        if form.startswith("Pair"):
            return Statement(f"{{t0}}, {{t1}} = {call}", given, (self.name("v"), self.name("v")), feature="cell")
        if form == "{0}":
            return Statement(f"{{t0}} = {call}", given, (self.name("v"),), feature="cell")
        if form == "{0}, {1}":
            return Statement(f"{{t0}}, {{t1}} = {call}", given, (self.name("v"), self.name("v")), feature="cell")
        return Statement(f"{{t0}} = {call}[0]", given, (self.name("v"),), feature="cell")

    def _result(self, scope: Scope, columns: list[Column]) -> Statement:
        rng = self.rng
        tensors = [n for n, v in scope.names.items() if isinstance(v, Tensor) and n.startswith("v")]
        others = [n for n, v in scope.names.items() if n.startswith("v") and not isinstance(v, Tensor)]
        if not tensors:
            return Statement("{0}, {1}", ("x", "x"))
        form = rng.choice(RESULTS)
        if rng.random() < 0.5:  # everything that nothing reads
            form = "(" + ", ".join(f"{{{i}}}" for i in range(len(tensors[:9]))) + ",)"
            return Statement(form, tuple(tensors[:9]))
        pool = [*tensors, *others, "x"] if rng.random() < 0.1 else tensors
        return Statement(form, (tensors[0], *(rng.choice(pool) for _ in range(2))))

    def _setup(self, scope: Scope, declared: list[Declared]) -> tuple[Statement, ...]:
        return tuple(self._on_declared(HOOKS, scope, declared, False)) if self.has("hooks of modules", 0.07) else ()

    def _changes(
        self, scope: Scope, declared: list[Declared], is_module: bool
    ) -> tuple[tuple[Statement, ...], ...]:
        calls = self.rng.choice([1] * 6 + [2] * 4 + [3])
        changes: list[tuple[Statement, ...]] = [()]
        for _ in range(calls - 1):
            is_changed = self.has("changes", 0.7)
            changes.append(tuple(self._on_declared(CHANGES, scope, declared, is_module)) if is_changed else ())
        return tuple(changes)

    def _on_declared(
        self, table: tuple[str, ...], scope: Scope, declared: list[Declared], is_module: bool
    ) -> list[Statement]:
        """A row of a table for something declared."""
        modules = [d.name for d in declared if d.feature == "module"]
        tensors = [d.name for d in declared if d.feature in ("parameter", "buffer", "tensor")]
        for _ in range(TRIES):
            row = self.rng.choice(self.allowed(table))
            pool = modules if "{M}" in row else tensors if "{p}" in row else ["model"]
            if pool and (is_module or "model" not in row):
                statement = Statement(row.replace("{M}", "{0}").replace("{p}", "{0}"), (self.rng.choice(pool),))
                if "model" in row or self._is_fine(scope, statement):
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


def pruned(program: Program) -> Program:
    """The program without columns, declarations and functions that nothing reads."""
    from dataclasses import replace

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
    return replace(program, columns=tuple(columns), declared=declared, functions=functions, prelude=prelude)


def _is_action(form: str, feature: str) -> bool:
    """Whether a line is there for what it does, not for a value."""
    if feature in ("in place", "rebinding", "hooks", "buffer writes"):
        return True
    return " = " in form.split("(")[0]


def _fits(letter: str, tensor: Tensor, first: Any) -> bool:
    is_float = tensor.is_floating_point()
    if letter == "s":
        return is_float and isinstance(first, Tensor) and tensor.shape == first.shape and tensor.dtype == first.dtype
    dims = {"F": (1, 9), "v": (1, 1), "m": (2, 2), "I": (1, 9), "t": (1, 9)}.get(letter, (0, 9))
    if not dims[0] <= tensor.dim() <= dims[1]:
        return False
    if letter in "fFvm":
        return is_float
    if letter in "iI":
        return tensor.dtype in (torch.int64, torch.int32)
    return letter in "ta" if letter != "b" else tensor.dtype == torch.bool


def _is_moderate(value: Any, may_be_infinite: bool) -> bool:
    """Not too large, neither in size nor in numbers."""
    if not isinstance(value, Tensor):
        return isinstance(value, bool | int | float | tuple | list | str)
    if value.numel() > LARGEST_SIZE or value.is_complex() or value.dim() > 4:
        return False
    if not value.is_floating_point() or may_be_infinite or not value.numel():
        return True
    with torch.no_grad():
        return bool((value.abs() < LARGEST_VALUE).all())


def _tree(rng: random.Random, leaves: int) -> str:
    if leaves == 1:
        return str(rng.randrange(3))
    left = rng.randint(1, leaves - 1)
    return f"({_tree(rng, left)}, {_tree(rng, leaves - left)})"
