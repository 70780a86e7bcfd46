"""Ctrl-C anywhere, and threads: torch is as it was, and the next call is right.

The long forms, in this folder: `python interrupting.py "" 1`, `python real_interrupts.py 5000 0` and
`python threads.py 200 plain`.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import interrupting
import pytest
import threads
import torch

from edbatch.torch_state.surroundings import Patience, inside

CASES = interrupting.cases()
TORCH = Path(torch.__file__).parent
# Where an interrupt broke something once: the file, and a part of the line.
ONCE_BROKEN = {
    "first, training": [
        ("calls/entries.py", "plain_loop.set(True)"),
        ("torch_state/hooks.py", "self._users.add(user)"),
        ("torch_state/hooks.py", "self._change()"),
        ("types/kernel_cache.py", "unhooked.set(True)"),
        ("cells/eager.py", "_run(given, others)"),
        ("capture/op_recorder.py", 'func.namespace == "prim"'),
        ("_library/simple_registry.py", "return"),
    ],
    "one by one": [("_functorch/predispatch.py", "import")],
    "frozen": [("runtime/frozen.py", "return _FrozenScope(")],
}


@pytest.fixture(autouse=True)
def _heard():
    """Ctrl-C is heard also where a shell lets its background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def right():
    return interrupting.expected()


@pytest.mark.parametrize("name", CASES)
def test_a_line_by_chance(name, right):
    lines = interrupting.lines_of(CASES[name])
    for k in random.Random(name).sample(range(len(lines)), 4):
        assert not interrupting.complaints(CASES[name], k, right), f"at {lines[k]}"


@pytest.mark.parametrize("name", ONCE_BROKEN)
def test_lines_that_an_interrupt_once_broke(name, right):
    lines = interrupting.lines_of(CASES[name])
    places = [(file, part) for file, part in ONCE_BROKEN[name] if not file.startswith("_") or (TORCH / file).exists()]
    if not places:
        pytest.skip("this torch has no such file")
    texts = {file: Path(file).read_text().splitlines() for file in {file for file, _ in lines}}
    for file, part in places:
        found = [k for k, (path, n) in enumerate(lines) if path.endswith(file) and part in texts[path][n - 1]]
        assert found, f"no line of {file} has {part}"
        assert not interrupting.complaints(CASES[name], found[0], right), f"at {file}: {part}"


def test_real_interrupts():
    tests = Path(__file__).parent
    run = subprocess.run(
        [sys.executable, str(tests / "real_interrupts.py"), "100", "0"],
        env=os.environ | {"OMP_NUM_THREADS": "1", "EDBATCH_COMPILE": "1"},
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    report = json.loads(run.stdout.splitlines()[-1])
    assert not report["wrong"]
    assert report["surfaced"] >= 100


def test_threads_whose_first_calls_overlap():
    assert not threads.main(4, compile=False)


def test_patience_makes_an_interrupt_wait_and_the_second_one_not():
    done = []

    def work(times):
        patience.begin()
        for i in range(times):
            done.append(i)
            signal.raise_signal(signal.SIGINT)
        done.append("end")

    before = signal.getsignal(signal.SIGINT)
    for times, expected in ((0, ["end"]), (1, [0, "end"]), (2, [0, 1])):
        patience = Patience()
        done.clear()
        try:
            inside((patience,), work, times)
            assert times == 0
        except KeyboardInterrupt:
            assert times > 0
        assert done == expected
        assert signal.getsignal(signal.SIGINT) is before


def test_patience_with_alarms_and_requests_to_end():
    """Their handlers raise what they like."""

    class Ended(Exception):
        pass

    def end(number, frame):
        raise Ended(number)

    def work():
        patience.begin()
        for number in numbers:
            signal.raise_signal(number)
        done.append("end")

    patience, done, numbers = Patience(), [], (signal.SIGALRM, signal.SIGTERM)
    before = [signal.signal(number, end) for number in numbers]
    try:
        with pytest.raises(Ended):
            inside((patience,), work)
        assert done == ["end"]
        assert [signal.getsignal(number) for number in numbers] == [end, end]
    finally:
        for number, handle in zip(numbers, before, strict=True):
            signal.signal(number, handle)


def test_patience_in_another_thread_changes_nothing():
    before = signal.getsignal(signal.SIGINT)
    patience = Patience()
    assert interrupting.in_thread(lambda: inside((patience,), patience.begin)) is None
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])  # the latter of a handler for SIGTERM
def test_contexts_of_interrupted_frames_are_given_up_at_once(error):
    def interrupted():
        guard = torch._C._InferenceMode(True)  # never left
        raise error(guard is not None)

    with pytest.raises(error) as caught:
        inside((), interrupted)
    assert caught.value is not None
    assert not torch.is_inference_mode_enabled()
