"""A process that is sent SIGINT at chance moments while it trains and infers: what comes up, and what stays right.

    python real_interrupts.py 100 seed

It ends with a line of JSON. Interrupts in a `__del__`, or in what else C calls, are swallowed by Python itself.
"""

from __future__ import annotations

import json
import operator
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from interrupting import TREES, Trees, _hushed, difference, expected, in_thread, model, state, trained, wrong

import edbatch


class Sender(threading.Thread):
    """Sends SIGINT to this process a chance time after it is armed."""

    def __init__(self, seed: int):
        super().__init__(daemon=True)
        self._chance, self._armed = random.Random(seed), threading.Event()
        self.longest = 0.01  # seconds until an interrupt
        self.sent = 0

    def run(self) -> None:
        while True:
            self._armed.wait()
            time.sleep(self._chance.uniform(0, self.longest))
            self._armed.clear()
            self.sent += 1
            os.kill(os.getpid(), signal.SIGINT)

    def arm(self) -> None:
        self._armed.set()

    def settle(self) -> None:
        """Returns, perhaps by KeyboardInterrupt, when nothing more is to come."""
        while self._armed.is_set():
            time.sleep(0.001)
        time.sleep(0.002)


def _name(tree: Any) -> str:
    return str(tree)


def _train(trees: Trees, batched: edbatch.Batched) -> Any:
    return trained(batched(TREES), trees)


def _infer(trees: Trees, batched: edbatch.Batched) -> Any:
    with edbatch.frozen(trees), torch.no_grad():
        return batched(TREES)


def _one_by_one(trees: Trees, batched: edbatch.Batched) -> Any:
    return batched.one_by_one(TREES)


def main(number: int, seed: int) -> dict[str, Any]:
    chance, right = random.Random(seed), expected()
    makers: list[Callable[[Trees], edbatch.Batched]] = [
        lambda trees: edbatch.batch(trees, compile=False),
        lambda trees: edbatch.batch(trees, compile=False, key=_name),
        lambda trees: edbatch.batch(trees, key=_name),
        lambda trees: edbatch.batch(trees),
    ]
    for make in makers:  # everything is compiled and imported before it begins
        trees = model()
        _train(trees, batched := make(trees)), _infer(trees, batched)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what runs in its background ignore it
    sender = Sender(seed)
    sender.start()
    surfaced, wrongs = 0, []
    while surfaced < number and len(wrongs) < 5 and sender.sent < 3 * number + 100:
        trees = model()
        batched = chance.choice(makers)(trees)
        for _ in range(3):  # the first is a first call, with capture
            call = chance.choice([_train, _train, _infer, _one_by_one])
            torch.set_grad_enabled(True)
            before = state(trees)
            began = time.perf_counter()
            try:
                sender.arm()
                while True:
                    call(trees, batched)
                    if not sender._armed.is_set():
                        break
                sender.settle()
            except KeyboardInterrupt:
                surfaced += 1
            except BaseException as error:
                wrongs.append("".join(traceback.format_exception(error))[-3000:])
            while True:  # it may come while it is waited for
                try:
                    sender.settle()
                    break
                except KeyboardInterrupt:
                    surfaced += 1
            sender.longest = 0.1 if time.perf_counter() - began > 0.05 else 0.03
            found = difference(before, state(trees))
            if not found:
                run = chance.choice([in_thread, operator.call])
                found = [text for text in [wrong(run(partial(_train, trees, batched)), right)] if text]
                found += difference(before, state(trees))
            wrongs += found
    return {"sent": sender.sent, "surfaced": surfaced, "wrong": wrongs}


if __name__ == "__main__":
    with _hushed():
        report = main(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps(report), flush=True)
