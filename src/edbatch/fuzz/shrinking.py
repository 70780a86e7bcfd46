"""Makes failing programs small: parts are removed as long as the program still fails in the same way.

In: a failing program, and a function that runs one. Out: a smaller program.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from edbatch.fuzz.generating import pruned
from edbatch.fuzz.program import Column, RandomProgram, Statement
from edbatch.fuzz.worker import Outcome

Block = tuple[Statement, ...]
PLAIN_OPTIONS = {"compile": "False", "policy": "'depth'", "stack": "False"}


def signature(outcome: Outcome) -> str:
    """A text that is equal for two outcomes if they are the same kind of failure."""
    if outcome.kind == "error":
        return re.sub(r"\d+|'[^']*'|\[[^]]*\]", "…", outcome.message)[:80]
    if outcome.kind == "wrong":
        words = (
            "state of torch",
            "requires_grad",
            "gradient",
            "structure",
            "attributes",
            "random",
            "shape and dtype",
            "result",
        )
        return outcome.kind + ": " + next((word for word in words if word in outcome.message), "tensors of the model")
    return outcome.kind


def shrink(
    program: RandomProgram, outcome: Outcome, run: Callable[[RandomProgram], Outcome], seconds: float
) -> RandomProgram:
    """The smallest program found in the time whose outcome has the same signature."""
    end, wanted = time.monotonic() + seconds, signature(outcome)
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in candidates(program):
            if time.monotonic() > end:
                return program
            found = run(candidate)
            if found.is_failure and found.kind == outcome.kind and signature(found) == wanted:
                program, is_smaller = candidate, True
                break
    return program


def candidates(program: RandomProgram) -> Iterator[RandomProgram]:
    """Smaller programs; those with most removed come first."""
    for candidate in _candidates(program):
        candidate = pruned(candidate)
        if candidate != program:
            yield candidate


def _candidates(program: RandomProgram) -> Iterator[RandomProgram]:
    yield from _simpler_settings(program)
    yield from _fewer_examples(program)
    for result in _smaller_results(program.result):
        yield replace(program, result=result)
    for i in reversed(range(len(program.setup))):
        yield replace(program, setup=program.setup[:i] + program.setup[i + 1 :])
    for body, gone in _smaller_blocks(program.body):
        left = _without(program.result, gone)
        if left is not None:
            yield replace(program, body=body, result=left)
    for i, function in enumerate(program.functions):
        for body, gone in _smaller_blocks(function.body):
            if not gone & set(function.result.operands):
                smaller = replace(function, body=body)
                yield replace(program, functions=(*program.functions[:i], smaller, *program.functions[i + 1 :]))
    yield from _substituted(program)
    yield from _simpler_columns(program)


def _simpler_settings(program: RandomProgram) -> Iterator[RandomProgram]:
    for i in reversed(range(1, len(program.changes))):
        yield replace(program, changes=program.changes[:i] + program.changes[i + 1 :])
    for i, changes in enumerate(program.changes):
        if changes:
            yield replace(program, changes=(*program.changes[:i], (), *program.changes[i + 1 :]))
    is_keyed = "key" in dict(program.options)
    for name, value in (("threads", 1), ("around", ""), ("loss", "all"), ("is_module", False), ("dtype", "float64")):
        if getattr(program, name) != value and not (name == "is_module" and is_keyed):  # keys freeze closures
            yield replace(program, **{name: value})  # type: ignore[arg-type]
    options = dict(program.options)
    for name, value in program.options:
        plain = PLAIN_OPTIONS.get(name)
        if plain is None:
            yield replace(program, options=tuple((k, v) for k, v in program.options if k != name))
        elif value != plain:
            yield replace(program, options=tuple((options | {name: plain}).items()))


def _fewer_examples(program: RandomProgram) -> Iterator[RandomProgram]:
    size = len(program.columns[0].entries)
    for i in reversed(range(size if size > 1 else 0)):
        columns = [replace(c, entries=c.entries[:i] + c.entries[i + 1 :]) for c in program.columns]
        yield replace(program, columns=tuple(columns))


def _smaller_results(result: Statement) -> Iterator[Statement]:
    used = [name for i, name in enumerate(result.operands) if f"{{{i}}}" in result.form]
    if result.form != "{0}":
        for name in used:
            yield Statement("{0}", (name,))
    for i in range(len(used) if len(used) > 1 else 0):
        yield _tuple(used[:i] + used[i + 1 :])


def _tuple(names: list[str]) -> Statement:
    return Statement("(" + ", ".join(f"{{{i}}}" for i in range(len(names))) + ",)", tuple(names))


def _without(result: Statement, gone: set[str]) -> Statement | None:
    """The result without some names; None if nothing is left of it."""
    if not gone & set(result.operands):
        return result
    left = [name for i, name in enumerate(result.operands) if name not in gone and f"{{{i}}}" in result.form]
    return _tuple(left) if left else None


def _smaller_blocks(block: Block) -> Iterator[tuple[Block, set[str]]]:
    """The block without one of its statements and without all that reads its names; and the names that are gone."""
    for i in reversed(range(len(block))):
        statement = block[i]
        before, after = block[:i], block[i + 1 :]
        defined = {target for s in before for inner in s.all() for target in inner.targets}
        gone = {target for inner in statement.all() for target in inner.targets} - defined
        rest, gone = _dropped(after, gone)
        yield before + rest, gone
        if statement.body:
            yield before + statement.body + after, set(statement.targets)
            for body, lost in _smaller_blocks(statement.body):
                rest, lost = _dropped(after, lost)
                yield (*before, replace(statement, body=body), *rest), lost


def _dropped(block: Block, gone: set[str]) -> tuple[Block, set[str]]:
    """The statements of a block that do not depend on the given names; and all names that are gone then."""
    gone, kept = set(gone), []
    for statement in block:
        if any(gone & set(inner.operands) for inner in statement.all()):
            gone |= {target for inner in statement.all() for target in inner.targets}
        else:
            kept.append(statement)
    return tuple(kept), gone


def _substituted(program: RandomProgram) -> Iterator[RandomProgram]:
    """Programs in which the value of a statement is replaced by one of its operands."""
    for i, statement in enumerate(program.body):
        if len(statement.targets) != 1 or statement.body:
            continue
        for operand in dict.fromkeys(o for o in statement.operands if o[0] in "xyvpcba" and o != "xs"):
            names = {statement.targets[0]: operand}
            after = tuple(_renamed(s, names) for s in program.body[i + 1 :])
            yield replace(program, body=program.body[:i] + after, result=_renamed(program.result, names))


def _renamed(statement: Statement, names: dict[str, str]) -> Statement:
    operands = tuple(names.get(name, name) for name in statement.operands)
    return replace(statement, operands=operands, body=tuple(_renamed(s, names) for s in statement.body))


def _simpler_columns(program: RandomProgram) -> Iterator[RandomProgram]:
    for i, column in enumerate(program.columns):
        for entries in _simpler_entries(column):
            changed = replace(column, entries=entries, is_tensor=False)
            yield replace(program, columns=(*program.columns[:i], changed, *program.columns[i + 1 :]))


def _simpler_entries(column: Column) -> Iterator[tuple[str, ...]]:
    without_grad = tuple(entry.replace(".requires_grad_()", "") for entry in column.entries)
    if column.is_tensor or without_grad != column.entries:
        yield without_grad
    if any(" + 1000 * call" in entry for entry in column.entries):
        yield tuple(entry.replace(" + 1000 * call", "") for entry in column.entries)
    for i, entry in enumerate(column.entries):
        if entry.startswith("[") and entry.count("randn") > 1:
            shorter = entry[: entry.rindex(", randn")] + "]"
            yield (*column.entries[:i], shorter, *column.entries[i + 1 :])
        if entry.startswith("("):
            yield (*column.entries[:i], "0", *column.entries[i + 1 :])
