"""The errors of edbatch. Each message says what happened, where, and what to do about it.

A local fact is raised deep down; which example and which of the user's lines it was is added once, in `pipeline.py`.
"""

from __future__ import annotations


class EdbatchError(Exception):
    """Base of every error that edbatch raises on purpose."""


class GraphError(EdbatchError, ValueError):
    """A graph, schedule or plan is not what it must be."""


class PolicyError(EdbatchError, ValueError):
    """A policy is unknown or cannot be used on this graph."""


class LeafError(EdbatchError, ValueError):
    """The leaves of a PQ tree are not distinct, or a set has something that is not a leaf."""


class CaptureError(EdbatchError):
    """A cell's body cannot be captured as a functional graph; the cell then runs one by one."""


class RecordingError(EdbatchError, RuntimeError):
    """A batched function did something that cannot be recorded.

    No TypeError: raised inside an operator such as `tensor += value`, Python would take that for "not implemented".
    """


class ValueReadError(RecordingError):
    """A lazy value was read (in an `if`, by `int()`, `.item()`, …) before it exists."""


class LeakedValueError(RecordingError):
    """A lazy value was used outside the call that made it."""


class InPlaceError(RecordingError):
    """A lazy value was written in place, or into a plain tensor."""


class BatchError(EdbatchError, ValueError):
    """The columns or the results of a batched call do not fit together."""


class WrongKeyError(EdbatchError, ValueError):
    """Two examples that are recorded differently have the same key."""


class GradientError(EdbatchError, RuntimeError):
    """A gradient was asked for that a batched call cannot give."""


class FrozenError(EdbatchError, RuntimeError):
    """Weights changed inside `edbatch.frozen`."""


class CheckError(EdbatchError, AssertionError):
    """`edbatch.check` found a difference between batched and one-by-one execution."""
