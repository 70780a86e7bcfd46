"""Ctrl-C during long work: the first waits for the end of a step, so that results can be saved; a second does not."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class Interrupts:
    """A context in which the first SIGINT or SIGTERM sets `wanted`, and the second raises KeyboardInterrupt."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for number in self.SIGNALS:
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.wanted:
            raise KeyboardInterrupt
        self.wanted = True
