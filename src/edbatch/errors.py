"""The errors of edbatch. Each message says what happened, where, and what to do about it.

Code deep inside raises with what it knows itself; `pipeline.py` adds, in one place, which example and which line of the
user's code it was. To *record* is to run the user's function on lazy values, which stand for tensors and have no
numbers yet.
"""

from __future__ import annotations


class EdbatchError(Exception):
    """Base of every error that edbatch raises on purpose."""


class GraphError(EdbatchError, ValueError):
    """A graph, schedule or plan breaks one of its rules."""


class PolicyError(EdbatchError, ValueError):
    """A policy is unknown or cannot be used on this graph."""


class LeafError(EdbatchError, ValueError):
    """The leaves of a PQ tree are not distinct, or a set holds something that is not a leaf."""


class CaptureError(EdbatchError):
    """The ops of a cell cannot be captured as a functional graph; the cell then runs one by one, without batching."""


class RecordingError(EdbatchError, RuntimeError):
    """A batched function did something that cannot be recorded.

    It is no TypeError: Python would take one that is raised inside an operator, such as `tensor += value`, for "not
    implemented".
    """


class ValueReadError(RecordingError):
    """A lazy value was read (in an `if`, by `int()`, `.item()`, …) before it has numbers."""


class LeakedValueError(RecordingError):
    """A lazy value was used outside the call that made it."""


class InPlaceError(RecordingError):
    """A lazy value was written in place, or into a plain tensor."""


class BatchError(EdbatchError, ValueError):
    """The columns (arguments with one entry per example) or the results of a batched call do not fit together."""


class WrongKeyError(EdbatchError, ValueError):
    """Two examples that are recorded differently have the same `key=`."""


class GradientError(EdbatchError, RuntimeError):
    """A gradient was asked for that a batched call cannot give."""


class FrozenError(EdbatchError, RuntimeError):
    """Weights changed inside `edbatch.frozen`."""


class CheckError(EdbatchError, AssertionError):
    """`edbatch.check` found a difference between batched and one-by-one execution."""
