"""What we rely on of dynamo, imported or not."""

import subprocess
import sys

from edbatch.torch_insides import compiler

IMPORTS = """
import sys, torch
before = set(sys.modules)
from edbatch.torch_insides import compiler, libraries, modes, modules, ops, pytree, tensors, transforms
print([name for name in sys.modules if name.startswith("torch") and name not in before])
from edbatch.torch_insides import fake
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""


def test_the_door_imports_nothing_of_torch_that_torch_does_not():
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]


def test_dynamo_looks_at_frames_or_not():
    import torch._dynamo

    traced, seen = [], []

    def backend(graph, example_inputs):
        traced.append(graph)
        return graph.forward

    def run(x):
        before = compiler.set_frame_callback(None)
        found = inner(x)
        assert compiler.set_frame_callback(before) is None
        seen.append(before)
        return found

    def inner(x):
        return x.tanh()

    compiler.skip_frames_of(run.__code__)
    torch.compile(run, backend=backend)(torch.ones(2))
    assert traced == []
    assert callable(seen[0])
    torch.compile(inner, backend=backend)(torch.ones(2))
    assert len(traced) == 1
    assert compiler.MODULE in sys.modules
    torch._dynamo.reset()


def test_the_stance_is_asked_for_and_put_back():
    import torch._dynamo.eval_frame

    before = compiler.stance()
    torch.compiler.set_stance("force_eager")
    theirs = compiler.stance()
    compiler.set_stance(before)
    assert compiler.stance() is before
    compiler.set_stance("force_eager")
    assert compiler.stance() == theirs != before
    compiler.set_stance(before)
    assert compiler.stance() is before


def test_code_is_compiled_around_what_is_kept_out():
    import torch._dynamo

    traced, seen = [], []

    def backend(graph, example_inputs):
        traced.append(graph)
        return graph.forward

    def outside(x):
        seen.append(type(x))
        return x + 1

    compiler.keep_out(outside, "a reason")
    compiler.skip_frames_of(outside.__code__)
    result = torch.compile(lambda x: outside(x * 2) * 3, backend=backend)(torch.ones(1))
    assert result.item() == 9
    assert len(traced) == 2
    assert seen == [torch.Tensor]
    torch._dynamo.reset()
