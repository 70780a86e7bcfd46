"""Runs programs in a separate process, so that a crash or a hang is an outcome like any other."""

from __future__ import annotations

import multiprocessing
import os
import signal
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from edbatch.fuzz import comparing
from edbatch.fuzz.generating import generate
from edbatch.fuzz.program import RandomProgram, code_of

FAILURES = ("wrong", "error", "crash", "hang")


class Outcome(NamedTuple):
    """The outcome of a program: a kind of `comparing.compare`, or "crash" or "hang". If it failed, the program comes
    with it where possible: drawn again in another process, it might differ, since torch's results decide what is drawn.
    """

    kind: str
    message: str
    program: RandomProgram | None = None

    @property
    def is_failure(self) -> bool:
        return self.kind in FAILURES


def run(program: RandomProgram) -> Outcome:
    """Run a program in this process, both batched and one by one."""
    namespace: dict[str, Any] = {**vars(comparing), "__name__": "program"}
    exec(code_of(program), namespace)
    return Outcome(*comparing.compare(namespace["make"], namespace["SETTINGS"]))


class Worker:
    """Runs programs in another process, which is started again after a crash or a hang."""

    def __init__(self, excluded: frozenset[str], limit: float = 120.0):
        self.excluded = excluded
        self.limit = limit  # seconds that a program may take, compilation of kernels included
        self._process: Any = None
        self._pipe: Connection | None = None

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def run_number(self, seed: int, number: int) -> Outcome:
        """Generate a program and run it."""
        return self._ask((seed, number, self.excluded))

    def run(self, program: RandomProgram) -> Outcome:
        return self._ask(program)

    def _ask(self, request: Any) -> Outcome:
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(request)
            if self._pipe.poll(self.limit):
                return Outcome(*self._pipe.recv())
            self._stop()
            return Outcome("hang", f"no end within {self.limit:.0f} s")
        except (EOFError, ConnectionError):
            self._process.join(5)
            code = self._process.exitcode
            self._stop()
            return Outcome("crash", f"the process ended with exit code {code}")
        except KeyboardInterrupt:
            self._stop()
            raise

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = self._pipe = None


def _serve(pipe: Connection) -> None:
    """Answers requests until the parent process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # stderr: drops messages about compilation
    torch.set_num_threads(1)
    while True:
        try:
            request = pipe.recv()
        except EOFError:
            return
        program = request if isinstance(request, RandomProgram) else generate(*request)
        outcome = run(program)
        pipe.send((*outcome[:2], program if outcome.is_failure else None))
