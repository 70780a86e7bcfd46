"""Settings of torch that are one for all threads: ours while anybody wants it, and as before when the last one ends."""

import itertools
import threading
import warnings

import pytest
import torch

import edbatch
from edbatch.cells.capture.capture import capture
from edbatch.spec import Spec
from edbatch.torch_insides import compiler, fake
from edbatch.torch_state.hooks import Setting, Settled
from edbatch.torch_state.surroundings import inside


class Value:
    """Something that is set."""

    def __init__(self):
        self.now = "theirs"

    def setting(self):
        return Setting(lambda: self.now, lambda: setattr(self, "now", "ours"), lambda v: setattr(self, "now", v))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_first_changes_it_and_the_last_puts_it_back_in_any_order(order):
    value = Value()
    setting = value.setting()
    users = [Settled(setting) for _ in range(3)]
    for user in users:
        user.__enter__()
        assert value.now == ("theirs" if user is users[0] else "ours")
        user.begin()
    for i in order:
        assert value.now == "ours"
        users[i].__exit__()
        users[i].__exit__()  # left again, after an interrupt: nothing happens
    assert value.now == "theirs"


def test_who_has_not_begun_ends_nothing():
    value = Value()
    first, second = Settled(setting := value.setting()), Settled(setting)
    first.begin()
    second.__exit__()
    assert value.now == "ours"
    first.__exit__()
    assert value.now == "theirs"


def test_an_interrupt_of_a_change_is_taken_back():
    value = Value()

    def change():
        value.now = "ours"
        raise KeyboardInterrupt

    settled = Settled(Setting(lambda: value.now, change, lambda v: setattr(value, "now", v)))
    with pytest.raises(KeyboardInterrupt):
        inside((settled,), settled.begin)
    assert value.now == "theirs"


def test_threads_that_begin_and_end_in_between():
    value, wrong = Value(), []
    setting, barrier = value.setting(), threading.Barrier(8)

    def look(settled):
        settled.begin()
        if value.now != "ours":
            wrong.append(value.now)

    def work():
        barrier.wait()
        for _ in range(200):
            settled = Settled(setting)
            inside((settled,), look, settled)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert value.now == "theirs"


def attention():
    kinds = ("flash", "mem_efficient", "cudnn", "math")
    return [getattr(torch.backends.cuda, f"{kind}_sdp_enabled")() for kind in kinds]


def test_capture_settles_attention_and_the_log_and_leaves_them_as_they_were():
    seen = []

    def body(x):
        seen.append((attention(), fake.LOG.disabled))
        return x + 1

    torch.backends.cuda.enable_mem_efficient_sdp(False)
    before = attention(), fake.LOG.disabled
    try:
        capture(body, [Spec((2,), torch.float32, torch.device("cpu"))], [])
        assert seen == [([False, False, False, True], True)]
        assert (attention(), fake.LOG.disabled) == before
    finally:
        torch.backends.cuda.enable_mem_efficient_sdp(True)


def test_vmap_is_quiet_until_the_last_thread_has_launched():
    """Both threads are inside of a launch at once; the one that ends first does not make vmap warn in the other."""
    from edbatch.cells.torch_ops.rule_types import _VMAP_WARNS

    first, second = Settled(_VMAP_WARNS), Settled(_VMAP_WARNS)

    def warns():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.func.vmap(torch.histc)(torch.rand(3, 4))
        return bool(caught)

    first.begin()
    second.begin()
    assert not warns()
    first.__exit__()
    assert not warns()
    second.__exit__()
    assert warns()


def test_calls_of_threads_that_overlap_leave_the_stance():
    import torch._dynamo.eval_frame

    before, stances = compiler.stance(), []
    inner, outer = threading.Event(), threading.Event()

    def wait(x):
        inner.set()
        outer.wait(60)
        stances.append(compiler.stance().stance)
        return x + 1

    def at_once(x):
        stances.append(compiler.stance().stance)
        return x + 1

    thread = threading.Thread(target=edbatch.batch(wait), args=(torch.ones(1, 2),))
    thread.start()
    inner.wait(60)
    edbatch.batch(at_once)(torch.ones(1, 2))
    assert compiler.stance().stance == "force_eager"  # the other call is still under way
    outer.set()
    thread.join()
    assert stances == ["force_eager", "force_eager"]
    assert compiler.stance() is before
