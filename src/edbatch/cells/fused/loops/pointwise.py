"""Elementwise ops as expressions in generated kernels: a table with one row per op.

In: an op and the texts of its operands' elements. Out: the text of the result's element, or None where a kernel would
not give torch's result (the op then stays a call of torch). The functions in these texts are those of `fast_math` and
`integer_math`.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from typing import Any

import torch

from edbatch.cells.body.body import Op, Val

aten = torch.ops.aten
BY_SIZE = {4: "f32", 8: "f64"}  # by bytes of an element: the type as which copies move it, without a change of bits
DTYPES = {torch.float32: "f32", torch.float64: "f64", torch.bool: "b8", torch.int64: "i64"}
CASTS = {torch.float32: "float32", torch.float64: "float64", torch.int64: "int64", torch.bool: "bool_"}
FLOATS = (torch.float32, torch.float64)

_FUNCTIONS = re.compile(r"\b(exp|expm1|tanh|sigmoid|log|silu|gelu|softplus|erf|log1p)\(")
Expression = Callable[..., str | None]


def number(value: Any, dtype: torch.dtype) -> str | None:
    """A constant in the dtype that the kernel computes in."""
    if dtype is torch.bool:
        return repr(bool(value))
    if not math.isfinite(value):
        text = "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
        return f"{CASTS[dtype]}({text})" if dtype in FLOATS else None
    return f"{CASTS[dtype]}({value!r})"


def expression(op: Op, operands: list[Any], dtype: torch.dtype, exact_math: bool) -> str | None:
    """The text of an element of an op's result; `operands` are texts, or constants as in the op's arguments.

    `dtype`, that of the tensor operands, is the dtype that constants are converted to.
    """
    rule = TABLE.get(op.target)
    if rule is None or (exact_math and op.target in APPROXIMATED):
        return None
    texts = [a if isinstance(a, str) or a is None else number(a, dtype) for a in operands]
    text = rule(*texts, **dict(op.kwargs))
    if text is None:
        return None
    if op.spec is not None and getattr(op.spec, "dtype", None) is torch.bool:
        text = f"bool({text})"  # in registers True + True would be 2
    text = (
        text.replace("HUNDREDTH", f"{CASTS[dtype]}(0.01)")
        .replace("ONE", f"{CASTS[dtype]}(1)")
        .replace("ZERO", f"{CASTS[dtype]}(0)")
    )
    return wrapped(text) if dtype is torch.int64 else _FUNCTIONS.sub(rf"\1_{DTYPES[dtype]}(", text)


def wrapped(text: str) -> str:
    """An expression of integers, with arithmetic that wraps round, see `integer_math`.

    >>> wrapped("-a + int64(-2) * abs(b)")
    'wrapped_sum(wrapped_difference(0, a), wrapped_product(int64(-2), wrapped_abs(b)))'
    """
    return ast.unparse(_Wrapped().visit(ast.parse(text, mode="eval")))


class _Wrapped(ast.NodeTransformer):
    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        name = _WRAPPED.get(type(node.op))
        return self.generic_visit(node) if name is None else self._call(name, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if not isinstance(node.op, ast.USub) or isinstance(node.operand, ast.Constant):
            return self.generic_visit(node)
        return self._call("wrapped_difference", ast.Constant(0), node.operand)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        is_abs = isinstance(node.func, ast.Name) and node.func.id == "abs"
        return self._call("wrapped_abs", *node.args) if is_abs else self.generic_visit(node)

    def _call(self, name: str, *operands: ast.expr) -> ast.AST:
        return ast.Call(ast.Name(name), [self.visit(operand) for operand in operands], [])


_WRAPPED: dict[Any, str] = {ast.Add: "wrapped_sum", ast.Sub: "wrapped_difference", ast.Mult: "wrapped_product"}


def cast(text: str, source: torch.dtype, target: torch.dtype) -> str:
    """An element in another dtype."""
    return f"{'truncated' if source in FLOATS and target is torch.int64 else CASTS[target]}({text})"


def is_known(op: Op, exact_math: bool) -> bool:
    """Whether the op has an expression."""
    texts = ["x" if isinstance(a, Val) else a for a in op.args]
    if any(isinstance(a, tuple | torch.dtype) or (isinstance(a, str) and a != "x") for a in texts):
        return False
    try:
        return expression(op, texts, torch.float32, exact_math) is not None
    except TypeError:  # a keyword or an argument that the table's row does not take
        return False


def _sum(sign: str) -> Expression:
    def rule(a: str, b: str, alpha: Any = 1) -> str | None:
        return f"{a} {sign} {b}" if alpha == 1 else None

    return rule


def _form(text: str) -> Expression:
    """A rule from a template with operands {a}, {b}, {c}."""
    return lambda *operands: text.format(**dict(zip("abc", operands, strict=False)))


def _pow(a: str, exponent: str) -> str | None:
    value = float(exponent.split("(")[1].rstrip(")"))
    return {2.0: f"{a} * {a}", 0.5: f"sqrt({a})", 1.0: a}.get(value)


def _clamp(a: str, low: str | None = None, high: str | None = None) -> str:
    text = a if low is None else f"({low} if {a} < {low} else {a})"
    return text if high is None else f"({high} if {text} > {high} else {text})"


def _addcmul(a: str, b: str, c: str, value: Any = 1) -> str | None:
    return f"{a} + {b} * {c}" if value == 1 else None


def _softplus(a: str, beta: Any = None, threshold: Any = None) -> str | None:
    return f"softplus({a})" if beta is None and threshold is None else None


def _gelu(a: str, approximate: str = "none") -> str | None:
    return f"gelu({a})" if approximate == "none" else None


_COMPARE = {"gt": ">", "lt": "<", "ge": ">=", "le": "<=", "eq": "==", "ne": "!="}
TABLE: dict[Any, Expression] = {
    **{getattr(getattr(aten, name), kind): _form(f"{{a}} {sign} {{b}}")
       for name, sign in _COMPARE.items() for kind in ("Tensor", "Scalar")},
    aten.add.Tensor: _sum("+"), aten.sub.Tensor: _sum("-"), aten.add.Scalar: _sum("+"), aten.sub.Scalar: _sum("-"),
    aten.mul.Tensor: _form("{a} * {b}"), aten.mul.Scalar: _form("{a} * {b}"),
    aten.div.Tensor: lambda a, b: f"{a} / {b}", aten.div.Scalar: lambda a, b: f"{a} / {b}",
    aten.rsub.Scalar: lambda a, b, alpha=1: f"{b} - {a}" if alpha == 1 else None,
    aten.neg.default: _form("-{a}"), aten.abs.default: _form("abs({a})"), aten.sqrt.default: _form("sqrt({a})"),
    aten.reciprocal.default: _form("ONE / {a}"), aten.rsqrt.default: _form("ONE / sqrt({a})"),
    aten.maximum.default: _form("({a} if {a} > {b} or {a} != {a} else {b})"),
    aten.minimum.default: _form("({a} if {a} < {b} or {a} != {a} else {b})"),
    aten.relu.default: _form("(ZERO if {a} <= ZERO else {a})"),
    aten.where.self: _form("({b} if {a} else {c})"), aten.masked_fill.Scalar: _form("({c} if {b} else {a})"),
    aten.clamp.default: _clamp, aten.pow.Tensor_Scalar: _pow, aten.addcmul.default: _addcmul,
    aten.logical_not.default: _form("not {a}"), aten.logical_and.default: _form("({a} != 0) & ({b} != 0)"),
    aten.sigmoid_backward.default: _form("{a} * (ONE - {b}) * {b}"),
    aten.tanh_backward.default: _form("{a} * (ONE - {b} * {b})"),
    aten.threshold_backward.default: _form("(ZERO if {b} <= {c} else {a})"),
    aten.leaky_relu.default: lambda a, b="HUNDREDTH": f"({a} if {a} > ZERO else {a} * {b})",
    aten.exp.default: _form("exp({a})"), aten.tanh.default: _form("tanh({a})"),
    aten.sigmoid.default: _form("sigmoid({a})"), aten.log.default: _form("log({a})"),
    aten.silu.default: _form("silu({a})"), aten.gelu.default: _gelu, aten.softplus.default: _softplus,
    aten.erf.default: _form("erf({a})"), aten.log1p.default: _form("log1p({a})"),
    aten.expm1.default: _form("expm1({a})"),
    aten.silu_backward.default: _form("{a} * sigmoid({b}) * (ONE + {b} * (ONE - sigmoid({b})))"),
}  # fmt: skip
APPROXIMATED = frozenset({
    aten.exp.default, aten.tanh.default, aten.sigmoid.default, aten.log.default, aten.silu.default, aten.gelu.default,
    aten.softplus.default, aten.erf.default, aten.log1p.default, aten.silu_backward.default,
    aten.expm1.default,
})  # fmt: skip
