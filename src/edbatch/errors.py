"""The errors of edbatch. Each message says what happened, where, and what to do about it."""

from __future__ import annotations


class EdbatchError(Exception):
    """Base of every error that edbatch raises on purpose."""


class GraphError(EdbatchError, ValueError):
    """A graph, schedule or plan is not what it must be."""


class PolicyError(EdbatchError, ValueError):
    """A policy is unknown or cannot be used on this graph."""


class CaptureError(EdbatchError):
    """A cell's body cannot be captured as a functional graph; the cell then runs one by one."""
