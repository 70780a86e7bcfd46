"""Lines of programs, drawn from the tables and tried with plain torch on the first example.

If torch raises, another line is drawn. So programs are valid by construction, without rules for shapes.
"""

from __future__ import annotations

import random
import re
from collections import ChainMap
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import edbatch
from edbatch.fuzz.comparing import random_tensor
from edbatch.fuzz.operations import OPERATIONS
from edbatch.fuzz.program import PRELUDE, Statement, line_of
from edbatch.fuzz.surroundings import BLOCKS, SHARED_WRITES

NUMBERS = ("2", "3", "-1", "0", "0.5", "-1.5", "1.0", "0.0", "-0.0", "0.25", "1", "True")
POSITIVE = ("2", "0.5", "3", "1.5", "1")
LARGEST_SIZE, LARGEST_VALUE = 100, 1e4
TRIES = 12

WORLD: dict[str, Any] = {
    "torch": torch,
    "nn": nn,
    "F": F,
    "edbatch": edbatch,
    "randn": random_tensor,
    "NamedTuple": NamedTuple,
}
for _text in PRELUDE.values():
    exec(_text, WORLD)
del WORLD["__builtins__"]


class FilledRow(NamedTuple):
    """How a row of a table was filled in."""

    form: str
    operands: tuple[str, ...]


class NamesInReach:
    """The names that a line may use, with the values of the first example."""

    def __init__(self, names: ChainMap[str, Any], heads: tuple[str, ...] = ()):
        self.names = names
        self.heads = heads  # first lines of the blocks around, if they change what lines do

    def inner(self, head: str = "") -> NamesInReach:
        return NamesInReach(self.names.new_child(), (*self.heads, head) if head.startswith("with") else self.heads)

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


class Lines:
    """Draws lines; subclasses set what they are drawn from."""

    def __init__(self, seed: int, number: int, excluded: frozenset[str]):
        self.rng = random.Random(f"{seed}/{number}")
        self.label = f"{seed}/{number}"
        self.excluded = excluded
        self.count = 0
        self.modules: list[tuple[str, tuple[str, ...]]] = []
        self.shared: list[str] = []
        self.kinds: dict[str, list[str]] = {"K": [], "S": [], "B": [], "X": [], "D": []}
        self.weights: dict[str, float] = {}

    def has(self, feature: str, probability: float) -> bool:
        return self.rng.random() < probability and feature not in self.excluded

    def allowed(self, rows: Sequence[str]) -> Sequence[str]:
        """The rows of a table without those that contain something excluded."""
        return [row for row in rows if not any(text in row for text in self.excluded)]

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def body(self, scope: NamesInReach, size: int, calls: Sequence[Callable[[], Statement]] = ()) -> list[Statement]:
        """Some lines, and between them calls of functions, which are drawn when it is their turn."""
        body: list[Statement] = []
        waiting = list(calls)
        for _ in range(size):
            statement = self.statement(scope)
            if statement is not None:
                body.append(statement)
            if waiting and self.rng.random() < 0.6:
                body += self._accepted(scope, waiting.pop(0)())
        for draw in waiting:
            body += self._accepted(scope, draw())
        return body

    def _accepted(self, scope: NamesInReach, statement: Statement) -> list[Statement]:
        return [statement] if self.is_fine(scope, statement) else []

    def statement(self, scope: NamesInReach) -> Statement | None:
        features, weights = list(self.weights), list(self.weights.values())
        for _ in range(TRIES):
            feature = self.rng.choices(features, weights)[0]
            if feature in BLOCKS:
                block = self._block(scope, feature)
                if block is not None:
                    return block
                continue
            statement = self._drawn(scope, feature)
            if statement is not None and self.is_fine(scope, statement):
                return statement
        return None

    def _drawn(self, scope: NamesInReach, feature: str) -> Statement | None:
        """A line that is not tried yet."""
        row, given = "", {}
        if feature == "modules":
            name, rows = self.rng.choice(self.modules)
            row, given = self.rng.choice(self.allowed(rows) or rows), {"M": name}
        elif feature == "shared writes":
            row, given = self.rng.choice(self.allowed(SHARED_WRITES)), {"p": self.rng.choice(self.shared)}
        else:
            row = self.rng.choice(self.allowed(OPERATIONS[feature]))
        slot = self.filled(row, scope, given)
        if slot is None:
            return None
        targets = tuple(self.name("v") for _ in set(re.findall(r"\{t\d\}", slot.form)))
        if not targets and not _is_action(slot.form, feature):
            return Statement("{t0} = " + slot.form, slot.operands, (self.name("v"),), feature=feature)
        return Statement(slot.form, slot.operands, targets, feature=feature)

    def filled(self, row: str, scope: NamesInReach, given: dict[str, str]) -> FilledRow | None:
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
            return FilledRow(re.sub(r"\{([A-Za-z])\}", fill, row), tuple(operands))
        except LookupError:  # nothing fits
            return None

    def _fitting(self, letter: str, operands: list[str], scope: NamesInReach) -> list[str]:
        if letter in self.kinds:
            return self.kinds[letter]
        first = scope.names.get(operands[0]) if operands else None
        return [name for name, t in scope.tensors() if _fits(letter, t, first)]

    def _literal(self, letter: str, operands: list[str], scope: NamesInReach) -> str | None:
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

    def is_fine(self, scope: NamesInReach, statement: Statement) -> bool:
        """Try a line on the first example; names that it sets are kept if torch and the limits of values allow it."""
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

    def _block(self, scope: NamesInReach, feature: str) -> Statement | None:
        slot = self.filled(self.rng.choice(self.allowed(BLOCKS[feature])), scope, {})
        if slot is None or len(scope.heads) > 1:
            return None
        targets = (self.name("w"),) if "{t0}" in slot.form else ()
        head = Statement(slot.form, slot.operands, targets, feature=feature)
        inner = scope.inner(line_of(head))
        for target in targets:
            inner.names[target] = scope.names[slot.operands[0]][0]
        body = [s for s in (self.statement(inner) for _ in range(self.rng.randint(1, 2))) if s is not None]
        if slot.form.startswith("with"):
            scope.names.update(inner.names.maps[0])
        elif not self._rebind(scope, inner, body):
            return None
        return Statement(head.form, head.operands, head.targets, tuple(body), feature) if body else None

    def _rebind(self, scope: NamesInReach, inner: NamesInReach, body: list[Statement]) -> bool:
        """Let a block, which may run never, once or often, set a name that was set before it."""
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


def _is_action(form: str, feature: str) -> bool:
    """Whether a line is drawn for its effect, not for its value."""
    if feature in ("in place", "rebinding", "hooks", "shared writes"):
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
    """Whether a value has neither too many elements nor too large ones."""
    if not isinstance(value, Tensor):
        return isinstance(value, bool | int | float | tuple | list | str)
    if value.numel() > LARGEST_SIZE or value.is_complex() or value.dim() > 4:
        return False
    if not value.is_floating_point() or may_be_infinite or not value.numel():
        return True
    with torch.no_grad():
        return bool((value.abs() < LARGEST_VALUE).all())
