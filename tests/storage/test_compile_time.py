"""Time spent on machine code is counted once, whoever needed it, and is no time of the stage that did."""

import threading
import time

from edbatch.stats import Stopwatch
from edbatch.storage.compile_time import counted, seconds_compiling


@counted
def compile_inner():
    time.sleep(0.02)


@counted
def compile_outer():
    compile_inner()
    time.sleep(0.01)


def test_what_a_stage_compiles_counts_as_compilation():
    watch = Stopwatch()
    with watch("plan"):
        compile_outer()
    with watch("run"):
        time.sleep(0.01)
    assert watch.seconds["compile"] >= 0.03
    assert watch.seconds["plan"] < watch.seconds["compile"]
    assert watch.seconds["run"] >= 0.01


def test_functions_that_compile_others_are_counted_once():
    begin, before = time.perf_counter(), seconds_compiling()
    compile_outer()
    assert 0.03 <= seconds_compiling() - before <= time.perf_counter() - begin


def test_threads_count_for_themselves():
    before = seconds_compiling()
    thread = threading.Thread(target=compile_inner)
    thread.start()
    thread.join()
    assert seconds_compiling() == before


def test_functions_of_numba_are_counted():
    from edbatch.storage.machine_code import MachineCode

    double = MachineCode("", sources="none").function(twice)
    before = seconds_compiling()
    assert double(2) == 4
    after = seconds_compiling()
    assert after > before
    assert double(3) == 6
    assert seconds_compiling() == after


def twice(x):
    return 2 * x
