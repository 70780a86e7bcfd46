"""Random programs as data, and their code: a `RandomProgram` comes in, Python text goes out.

A program is a model for one example with its examples, options of `edbatch.batch`, and changes between calls. The code
printed from it is run, and is in the script of a finding.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import indent


@dataclass(frozen=True)
class Statement:
    """A line of code, with the indented block below it if there is one.

    In `form`, `{0}`, `{1}`, … stand for operands and `{t0}`, `{t1}`, … for the names that the line sets.
    """

    form: str
    operands: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    body: tuple[Statement, ...] = ()
    feature: str = ""

    def all(self) -> Iterator[Statement]:
        yield self
        for inner in self.body:
            yield from inner.all()


@dataclass(frozen=True)
class Declared:
    """Something that examples share: a parameter, a tensor, a module, a list."""

    name: str
    expression: str
    feature: str = ""


@dataclass(frozen=True)
class Function:
    """A function that the model calls. Kinds: "plain", "cell", "module" (a marked module) and "tree" (recursive)."""

    name: str
    kind: str
    arguments: tuple[str, ...]
    body: tuple[Statement, ...]
    result: Statement
    owned: tuple[Declared, ...] = ()
    static: tuple[str, ...] = ()
    takes_list: bool = False  # all arguments in one list


@dataclass(frozen=True)
class Column:
    """An argument of the model: an expression for every example."""

    name: str
    entries: tuple[str, ...]
    is_tensor: bool = False  # the column is one tensor, not a list


@dataclass(frozen=True)
class RandomProgram:
    number: str  # "seed/number", from which it was drawn
    columns: tuple[Column, ...]
    body: tuple[Statement, ...]
    result: Statement
    keywords: tuple[tuple[str, str], ...] = ()  # what all examples share by keyword
    declared: tuple[Declared, ...] = ()
    functions: tuple[Function, ...] = ()
    setup: tuple[Statement, ...] = ()  # lines that run once, after declarations: hooks, modes
    changes: tuple[tuple[Statement, ...], ...] = ((),)  # lines that run before each call
    options: tuple[tuple[str, str], ...] = ()  # of edbatch.batch
    around: str = ""
    dtype: str = "float64"
    loss: str = "all"
    threads: int = 1
    is_module: bool = False
    prelude: tuple[str, ...] = ()  # names in PRELUDE


PRELUDE = {
    "Scaled": """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor * 3, None
""",
    "Clipped": """
class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-0.5, 0.5)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 1)
""",
    "Alike": """
class Alike(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def __eq__(self, other):
        return isinstance(other, Alike)

    def __hash__(self):
        return 1

    def forward(self, x):
        return x * self.factor
""",
    "Pair": """
class Pair(NamedTuple):
    first: object
    second: object
""",
    "Residual": """
class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, x):
        return x + torch.tanh(self.inner(x))
""",
}  # fmt: skip


def code_of(program: RandomProgram) -> str:
    """The code of a program: the function `make` and the settings, see `comparing`."""
    options = dict(program.options)
    stack = options.get("stack", "True")
    coarse = any(word in str(program) for word in ("autocast", "bfloat16", "float16", "half()"))
    is_single = program.dtype == "float32" or any(word in str(program) for word in ("float32", ".float()"))
    settings = (
        f"dict(dtype=torch.{program.dtype}, calls={len(program.changes)}, loss={program.loss!r}, "
        f"threads={program.threads}, stack={stack}, strict={is_strict(program)}, "
        f"precise={is_precise(program)}, coarse={coarse}, single={is_single})"
    )
    lines = [*_make(program)]
    parts = [PRELUDE[name].strip("\n") + "\n\n" for name in program.prelude]
    return "\n".join(
        [*parts, "def make(randn):", indent("\n".join(lines), "    "), "", "", f"SETTINGS = {settings}", ""]
    )


def is_strict(program: RandomProgram) -> bool:
    """Whether the loss depends on all that is computed. Then a gradient must not be zero where torch has None."""
    blocks = [program.body, *(f.body for f in program.functions)]
    statements = [inner for block in blocks for s in block for inner in s.all()]
    if program.loss != "all" or any(s.body or "detach" in s.form or "zeros_like" in s.form for s in statements):
        return False
    used = {name for s in statements for name in s.operands}
    used |= {name for i, name in enumerate(program.result.operands) if f"{{{i}}}" in program.result.form}
    return all(target in used for s in statements for target in s.targets) and not program.functions


def is_precise(program: RandomProgram) -> bool:
    """Whether no two calls can be of one type. Else one call that needs gradients makes the other need them, too."""
    if program.functions or any(s.body for s in program.body):
        return False
    words = [word for s in program.body for word in re.findall(r"[a-z_]{2,}|[-+*/@<>=]", s.form)]
    return len(words) == len(set(words))


def line_of(statement: Statement, prefix: dict[str, str] | None = None) -> str:
    names = [(prefix or {}).get(name, name) for name in statement.operands]
    targets = {f"t{i}": name for i, name in enumerate(statement.targets)}
    return re.sub(r"\{(t?)(\d)\}", lambda m: targets["t" + m[2]] if m[1] else names[int(m[2])], statement.form)


def lines_of(body: tuple[Statement, ...], prefix: dict[str, str] | None = None) -> list[str]:
    lines = []
    for statement in body:
        lines.append(line_of(statement, prefix))
        if statement.form.endswith(":"):
            lines += ["    " + line for line in lines_of(statement.body, prefix) or ["pass"]]
    return lines


def function_lines(function: Function) -> list[str]:
    """The lines that define a function."""
    name, arguments = function.name, ", ".join(function.arguments)
    mine = {d.name: f"self.{d.name}" for d in function.owned}
    body = [*lines_of(function.body, mine), "return " + line_of(function.result, mine)]
    if function.takes_list:
        body, arguments = [f"{arguments}, = values", *body], "values"
    if function.kind == "tree":
        left, right = function.arguments
        leaf = ["if isinstance(tree, int):", f"    return {function.owned[0].expression}[tree]"]
        down = [f"{left}, {right} = {name}(tree[0]), {name}(tree[1])"]
        return [f"def {name}(tree):", *["    " + line for line in [*leaf, *down, *body]], ""]
    if function.kind == "module":
        own = ["super().__init__()", *[f"self.{d.name} = {d.expression}" for d in function.owned]]
        methods = ["def __init__(self):", *["    " + line for line in own], ""]
        methods += [f"def forward(self, {arguments}):", *["    " + line for line in body], ""]
        marked = f"{name} = edbatch.cell(Class{name}(){_static(function)})"
        return [f"class Class{name}(nn.Module):", *["    " + line for line in methods], marked]
    mark = [f"@edbatch.cell(static={function.static!r})" if function.static else "@edbatch.cell"]
    head = mark if function.kind == "cell" else []
    return [*head, f"def {name}({arguments}):", *["    " + line for line in body], ""]


def _static(function: Function) -> str:
    return f", static={function.static!r}" if function.static else ""


def _make(program: RandomProgram) -> Iterator[str]:
    yield "torch.manual_seed(0)"
    for declared in program.declared:
        yield f"{declared.name} = {declared.expression}"
    for function in program.functions:
        yield from function_lines(function)
    yield from _model(program)
    yield from lines_of(program.setup)
    yield ""
    yield "def columns(call):"
    entries = [f"[{', '.join(column.entries)}]" for column in program.columns]
    whole = [
        f"torch.stack({e}).detach().requires_grad_()" if column.is_tensor else e
        for column, e in zip(program.columns, entries, strict=True)
    ]
    yield f"    return {', '.join(whole)},"
    yield ""
    yield "def before(call):"
    for call, changes in enumerate(program.changes):
        if changes:
            yield f"    if call == {call}:"
            yield from ("        " + line for line in lines_of(changes))
    yield "    return None"
    yield ""
    if program.around:
        yield "def around():"
        yield f"    return {program.around}"
        yield ""
    options = "".join(f", {name}={value}" for name, value in program.options)
    yield "def batch():"
    yield f"    return edbatch.batch(model{options})"
    yield ""
    holders = [d.name for d in program.declared] + [f.name for f in program.functions if f.kind == "module"]
    held = ", ".join(f"{name!r}: {name}" for name in holders)
    around = ", around=around" if program.around else ""
    yield f"state = {{{held}}}"
    keywords = ", ".join(f"{name!r}: {expression}" for name, expression in program.keywords)
    yield f"keywords = {{{keywords}}}"
    names = ("model", "columns", "keywords", "before", "batch", "state")
    yield f"return SimpleNamespace({', '.join(f'{name}={name}' for name in names)}{around})"


def _model(program: RandomProgram) -> Iterator[str]:
    arguments = ", ".join([column.name for column in program.columns] + [name for name, _ in program.keywords])
    if not program.is_module:
        yield f"def model({arguments}):"
        yield from ("    " + line for line in lines_of(program.body))
        yield "    return " + line_of(program.result)
        yield ""
        return
    mine = {d.name: f"self.{d.name}" for d in program.declared}
    yield "class Model(nn.Module):"
    yield "    def __init__(self):"
    yield "        super().__init__()"
    for d in program.declared:
        is_buffer = d.feature == "buffer"
        yield (
            f"        self.register_buffer({d.name!r}, {d.name})" if is_buffer else f"        self.{d.name} = {d.name}"
        )
    yield ""
    yield f"    def forward(self, {arguments}):"
    yield from ("        " + line for line in lines_of(program.body, mine))
    yield "        return " + line_of(program.result, mine)
    yield ""
    yield "model = Model()"
