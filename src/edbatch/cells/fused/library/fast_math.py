"""Elementwise functions for generated kernels: scalar functions that LLVM inlines and vectorises in the caller's loop.

In: nothing. Out: `FUNCTIONS32` and `FUNCTIONS64`, the functions of a float32 and of a float64 by name. Compiled kernels
contain them, so the contents of this file are part of the key under which kernels are kept on disk.

The float32 functions are ours. They stay within a relative error of 1e-6 of the true value wherever that is a normal
number, keep NaN, have their exact limits at the infinities and give a zero the sign torch gives it; where torch answers
NaN (`silu` and `gelu` at minus infinity) so do they. Results below the smallest normal number may be flushed to zero.
There are no branches: both sides of each `if` are computed and one is selected. Each comparison is the one that
sends NaN to the side that keeps it, which is why some look the wrong way round.

Methods: exp by x = k ln 2 + r, where adding 1.5 * 2**23 rounds to the integer k and leaves it in the low bits; log by
x = 2**k (1 + f); tanh and erf by expm1, which is small where they are; softplus as max(x, 0) + log1p(exp(-|x|));
gelu by the tail of the normal distribution, not by 1 + erf, which cancels.

The coefficients are weighted minimax polynomials, found by a Remez exchange on 1,500 Chebyshev points with values from
mpmath (40 digits) and rounded to float32; beside each stand its interval, what its error is relative to, and the error.

The float64 functions are the exact ones of the C library, arranged so that the tails keep their digits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from edbatch.cells.fused.library import intrinsics
from edbatch.cells.fused.library.intrinsics import exponent, leading_bits, mantissa, times_power_of_two
from edbatch.storage.machine_code import MachineCode, digest

_CODE = MachineCode("", sources=digest(Path(file) for file in (__file__, intrinsics.__file__)))
_FUNCTION: dict[str, Any] = {
    "fastmath": {"contract"},  # for these functions only: code that a kernel inlines keeps its own flags
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}


def _function(function: Callable[..., Any]) -> Callable[..., Any]:
    return _CODE.function(function, **_FUNCTION)  # type: ignore[no-any-return]


# ---- float32

_f = np.float32
_ZERO, _HALF, _ONE, _TWO = _f(0), _f(0.5), _f(1), _f(2)
_INFINITY, _NAN = _f(math.inf), _f(math.nan)
_SMALLEST = _f(2.0**-126)  # the smallest normal number
_SHIFT = _f(1.5 * 2**23)  # x + _SHIFT is x rounded to an integer, in the low bits
_LOG2_E, _LN_2 = _f(1 / math.log(2)), _f(math.log(2))
_LN_2_HIGH = _f(round(math.log(2) * 2**15) / 2**15)  # times an integer up to 2**8 it is exact
_LN_2_LOW = _f(math.log(2) - float(_LN_2_HIGH))
_LARGEST_EXPONENT = _f(88.72283)  # exp of it is finite, of the next float32 it is not
_SMALLEST_EXPONENT = _f(-87.33654)  # exp of it is normal, of the float32 below it is not

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, relative to exp(r) - 1: 1.7e-8
_E0, _E1, _E2, _E3, _E4 = (_f(c) for c in (0.49999997, 0.16666543, 0.0416672, 0.0083665205, 0.0013882524))
# (log(1 + f) - f + f**2 / 2) / f**3 on [sqrt(1/2) - 1, sqrt(2) - 1], relative to log(1 + f): 3.4e-8
_L0, _L1, _L2, _L3, _L4, _L5, _L6 = (
    _f(c) for c in (0.3333391, -0.25001338, 0.19963063, -0.16577584, 0.14914773, -0.14267503, 0.087004416)
)
# (log(1 + e) - e) / e**2 on [0, 1], relative to log(1 + e): 3.4e-8
_S0, _S1, _S2, _S3, _S4, _S5, _S6, _S7 = (
    _f(c)
    for c in (
        *(-0.49999648, 0.33321324, -0.24857165, 0.19153658),
        *(-0.13753808, 0.07920459, -0.030065827, 0.0053648334),
    )
)
# -log(erfc(a)) / a on [0, 3.95], as it reaches erf(a), relative to erf(a): 5.2e-8
_ERF_IS_ONE = _f(3.95)
_R0, _R1, _R2, _R3, _R4, _R5, _R6, _R7 = (
    _f(c)
    for c in (
        *(1.1283792, 0.63661647, 0.10281441, -0.019321715),
        *(0.00020571593, 0.001251746, -0.00038100017, 4.0707822e-05),
    )
)
# exp(a**2 / 2) * (normal distribution above a) / u in powers of u = 1 / (1 + 0.26 a), a in [0, 13.3], relative: 4.5e-8
_TAIL_SCALE, _TAIL_END = _f(0.26), _f(13.9)
_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7, _T8 = (
    _f(c)
    for c in (
        *(0.103762195, 0.10296493, 0.10339134, 0.049642473),
        *(0.16415247, -0.1555359, 0.2554666, -0.1547402, 0.030896086),
    )
)


@_function
def _expm1_reduced(r: Any) -> Any:
    """exp(r) - 1 for |r| <= ln(2) / 2."""
    return ((((_E4 * r + _E3) * r + _E2) * r + _E1) * r + _E0) * (r * r) + r


@_function
def _exp_in_range(x: Any, factor: Any) -> Any:
    """factor * exp(x) for a factor that is a power of two; right where the result is a normal number."""
    shifted = x * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    r = (x - k * _LN_2_HIGH) - k * _LN_2_LOW
    p = (((((_E4 * r + _E3) * r + _E2) * r + _E1) * r + _E0) * r + _ONE) * r + _ONE
    return times_power_of_two(p * factor, shifted)


@_function
def _log_of_parts(k: Any, f: Any) -> Any:
    """log(2**k (1 + f)) for 1 + f in [sqrt(1/2), sqrt(2))."""
    p = (((((_L6 * f + _L5) * f + _L4) * f + _L3) * f + _L2) * f + _L1) * f + _L0
    return k * _LN_2_HIGH + (((f * p - _HALF) * (f * f) + k * _LN_2_LOW) + f)


@_function
def exp(x: Any) -> Any:
    y = _exp_in_range(x, _ONE)
    y = y if x <= _LARGEST_EXPONENT else x + _INFINITY
    return _ZERO if x < _SMALLEST_EXPONENT else y


@_function
def expm1(x: Any) -> Any:
    y = _f(89) if x > _f(89) else x  # where exp overflows, but its half does not
    y = _f(-20) if y < _f(-20) else y
    shifted = y * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    half_power = times_power_of_two(_HALF, shifted)
    half = half_power * _expm1_reduced((y - k * _LN_2_HIGH) - k * _LN_2_LOW) + (half_power - _HALF)
    return np.copysign(half + half, x)


@_function
def tanh(x: Any) -> Any:
    a = abs(x)
    a = _f(9.2) if a > _f(9.2) else a  # tanh is 1 from here
    a = a + a
    shifted = a * _LOG2_E + _SHIFT
    power = times_power_of_two(_ONE, shifted)
    m = power * _expm1_reduced(a - (shifted - _SHIFT) * _LN_2) + (power - _ONE)  # expm1(2 |x|)
    return np.copysign(m / (m + _TWO), x)


@_function
def sigmoid(x: Any) -> Any:
    y = -x
    e = _exp_in_range(y if y > _f(-80) else _f(-80), _ONE)  # sigmoid is 1 from 17
    e = e if y <= _LARGEST_EXPONENT else y + _INFINITY
    return _ONE / (_ONE + e)


@_function
def silu(x: Any) -> Any:
    """x / (1 + exp(-x)), both divided by 2**8: below -88 exp overflows where the quotient is still normal."""
    e = _exp_in_range(-x, _f(2**-8))
    e = e if x >= _f(-93) else _INFINITY - x
    y = x / (_f(2**-8) + e) * _f(2**-8)
    return y if x < _f(60) else x


@_function
def log(x: Any) -> Any:
    is_tiny = x < _SMALLEST
    y = x * _f(2**24) if is_tiny else x
    k = exponent(y) - (_f(24) if is_tiny else _ZERO)
    y = _log_of_parts(k, mantissa(y) - _ONE)
    y = y if x < _INFINITY else x
    return y if not x <= _ZERO else (-_INFINITY if x == _ZERO else _NAN)


@_function
def log1p(x: Any) -> Any:
    u = _ONE + x
    k = exponent(u)
    power = times_power_of_two(_ONE, _SHIFT - k)
    f = power * x + (power - _ONE)  # 2**-k (1 + x) - 1 without the rounding of 1 + x
    y = _log_of_parts(k, f if x < _f(2**24) else mantissa(u) - _ONE)
    y = y if x < _INFINITY else x
    y = y if not x <= -_ONE else (-_INFINITY if x == -_ONE else _NAN)
    return np.copysign(y, x)


@_function
def softplus(x: Any) -> Any:
    """log(1 + exp(x)); from 20 on that is x itself, as torch's threshold has it."""
    y = -abs(x)
    e = _exp_in_range(y, _ONE)
    e = e if y >= _SMALLEST_EXPONENT else _ZERO
    p = ((((((_S7 * e + _S6) * e + _S5) * e + _S4) * e + _S3) * e + _S2) * e + _S1) * e + _S0
    return (_ZERO if x <= _ZERO else x) + (p * (e * e) + e)


@_function
def erf(x: Any) -> Any:
    a = abs(x)
    a = _ERF_IS_ONE if a > _ERF_IS_ONE else a
    y = -a * (((((((_R7 * a + _R6) * a + _R5) * a + _R4) * a + _R3) * a + _R2) * a + _R1) * a + _R0)
    shifted = y * _LOG2_E + _SHIFT
    power = times_power_of_two(_ONE, shifted)
    y = (_ONE - power) - power * _expm1_reduced(y - (shifted - _SHIFT) * _LN_2)
    return np.copysign(y, x)


@_function
def gelu(x: Any) -> Any:
    """x times the normal distribution below x."""
    a = abs(x)
    high = leading_bits(a)
    y, rest = -_HALF * (high * high), -_HALF * ((a - high) * (a + high))  # -a**2 / 2 with twice the digits
    shifted = y * _LOG2_E + _SHIFT
    k = shifted - _SHIFT
    r = ((y - k * _LN_2_HIGH) - k * _LN_2_LOW) + rest
    density = times_power_of_two(
        _expm1_reduced(r) + _ONE, shifted + _f(24)
    )  # times 2**24: it would be flushed too early
    density = density if a <= _TAIL_END else _ZERO
    u = _ONE / (_ONE + _TAIL_SCALE * a)
    p = (((((((_T8 * u + _T7) * u + _T6) * u + _T5) * u + _T4) * u + _T3) * u + _T2) * u + _T1) * u + _T0
    # x * tail * 2**-24 below 0, else x * (1 - tail * 2**-24). Only constants are selected: arithmetic that one side of
    # an `if` needs is moved there, and LLVM keeps a branch; since Python 3.12 even if it is written before the `if`.
    whole = _ZERO if x < _ZERO else _ONE
    before = _ONE if x < _ZERO else _f(2**-24)
    after = _f(2**-24) if x < _ZERO else _ONE
    return x * abs(whole - density * (u * p) * before) * after


# ---- float64


@_function
def _sigmoid64(x: Any) -> Any:
    e = math.exp(-abs(x))
    return (1.0 if x >= 0.0 else e) / (1.0 + e)


@_function
def _silu64(x: Any) -> Any:
    return x * _sigmoid64(x)


@_function
def _softplus64(x: Any) -> Any:
    return x if x > 20.0 else math.log1p(math.exp(x))  # torch's threshold


@_function
def _gelu64(x: Any) -> Any:
    return 0.5 * x * math.erfc(-x * math.sqrt(0.5))


FUNCTIONS32: dict[str, Callable[..., Any]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log1p": log1p,
    "tanh": tanh,
    "sigmoid": sigmoid,
    "silu": silu,
    "softplus": softplus,
    "erf": erf,
    "gelu": gelu,
}
FUNCTIONS64: dict[str, Callable[..., Any]] = {
    "exp": math.exp,
    "expm1": math.expm1,
    "log": math.log,
    "log1p": math.log1p,
    "tanh": math.tanh,
    "sigmoid": _sigmoid64,
    "silu": _silu64,
    "softplus": _softplus64,
    "erf": math.erf,
    "gelu": _gelu64,
}
