"""Cells that nobody marked: what becomes one node, what must not, and that results stay those of one by one."""

from __future__ import annotations

import copy
import random
import types
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import edbatch
from edbatch.recording.calls.fast_cells import RECORDS_IN_C
from edbatch.recording.program.marking import unmark
from edbatch.workloads import find

pytestmark = pytest.mark.usefixtures("double")

DIM = 4
LENGTHS = [3, 1, 4, 2, 5, 3]


def types_of(function, *columns, policy="bound-greedy", **options):
    """How many nodes every type has, by its name; results and gradients are those of one by one."""
    batched = edbatch.batch(function, policy=policy, **options)
    edbatch.check(batched, *columns)
    with torch.no_grad():
        batched(*columns)
    batched(*columns)
    return {t.name: t.num_nodes for t in batched.stats.types}


def unmarked(model):
    model = copy.deepcopy(model)
    for module in model.modules():
        unmark(module)
    return model


# ---- models of ours without their marks


@pytest.mark.parametrize("key", [None, id], ids=["recorded", "key"])
@pytest.mark.parametrize("name", ["tree-lstm", "lattice-lstm", "bilstm-tagger", "module-net"])
def test_models_without_marks_need_as_many_launches(name, key, monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)
    corpus = find(name).load(limit=12)
    marked = find(name).make(corpus, DIM)
    batches = []
    for model in (marked, unmarked(marked)):
        batched = edbatch.batch(model, stack="cat", key=key, policy="bound-greedy")
        edbatch.check(batched, corpus.train)
        edbatch.check(batched, corpus.train)
        for grad in (False, True):
            with torch.set_grad_enabled(grad):
                batched(corpus.train)
            batches.append(batched.stats.num_batches)
    assert batches[2] <= 1.1 * batches[0]
    assert batches[3] <= 1.1 * batches[1]


def test_fused_kernels_of_found_cells(compiled):
    corpus = find("tree-lstm").load(limit=4)
    model = unmarked(find("tree-lstm").make(corpus, DIM))
    batched = edbatch.batch(model)
    edbatch.check(batched, corpus.train)
    names = [name for name in batched.pipeline.kernel_of if "BinaryTreeLSTM.forward" in name]
    assert len(names) == 1
    assert batched.pipeline.kernel_of[names[0]].form_in_words(batched.switches) == "fused kernels"


@pytest.mark.parametrize("policy", ["depth", "agenda", "agenda-remaining", "ratio-greedy", "bound-greedy", "learned"])
def test_every_policy(policy):
    types_of(Chain(), LENGTHS, policy=policy)


# ---- calls


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

    def forward(self, x, h):
        return torch.tanh(self.w(x) + self.u(h))


class GRU(nn.Module):
    """Its result is a sum, which is recorded when it is read first: in the call after this one."""

    def __init__(self):
        super().__init__()
        self.w, self.u = nn.Linear(DIM, 2 * DIM), nn.Linear(DIM, 2 * DIM)

    def forward(self, x, h):
        z, n = (self.w(x) + self.u(h)).chunk(2)
        z, n = z.sigmoid(), n.tanh()
        return (1 - z) * n + z * h


class Chain(nn.Module):
    def __init__(self, step=Step):
        super().__init__()
        self.step = step()
        self.x = nn.Parameter(torch.randn(9, DIM))

    def forward(self, length):
        h = self.x[8]
        for i in range(length):
            h = self.step(self.x[i], h)
        return h * 2.0


@pytest.mark.parametrize("step", [Step, GRU])
def test_calls_of_a_module_become_nodes(step):
    found = types_of(Chain(step), LENGTHS)
    line = step.forward.__code__.co_firstlineno
    numbers = ", int" if step is GRU else ""
    name = f"step: {step.__name__}.forward(f64[4], f64[4]{numbers}), test_find_cells.py:{line}"
    assert found.pop(name) == sum(LENGTHS)
    assert found.pop(f"{name} ahead") == sum(LENGTHS)
    assert not any("step" in other for other in found)


def test_a_later_mini_batch_finds_the_same():
    batched = edbatch.batch(Chain(), policy="agenda")
    batched(LENGTHS)
    first = batched.pipeline.kernel_of
    for lengths in (LENGTHS[::-1], [2, 6], LENGTHS):
        batched(lengths)
        again = batched.pipeline.kernel_of
        assert all(again[name] is kernel for name, kernel in first.items() if "Step.forward" in name and name in again)
        assert any("Step.forward" in name for name in again)
    a, b = batched(LENGTHS), batched(LENGTHS)
    assert torch.equal(a, b)


def test_names_are_in_explain():
    batched = edbatch.batch(Chain())
    batched(LENGTHS)
    assert "step: Step.forward(f64[4], f64[4]), test_find_cells.py:" in batched.explain()


def test_found_cells_can_be_switched_off():
    batched = edbatch.batch(Chain())
    batched.switches = replace(batched.switches, find_cells=False)
    edbatch.check(batched, LENGTHS)
    assert not any("test_find_cells.py" in t.name for t in batched.stats.types)
    assert not batched.pipeline.found.codes


def test_values_inside_that_are_read_elsewhere_are_outputs():
    class Keeping(Step):
        def forward(self, x, h):
            kept.append(self.w(x) * 3.0)
            return torch.tanh(kept[-1] + self.u(h))

    kept = []
    chain = Chain(Keeping)

    def function(length):
        kept.clear()
        return chain(length), torch.stack([k.exp() for k in kept]).sum(0)

    found = types_of(function, LENGTHS)
    assert any("Keeping.forward" in name for name in found)


def test_the_largest_of_nested_calls():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Step(), Step()

        def forward(self, x, h):
            return self.second(x, self.first(x, h)).relu()

    found = types_of(Chain(Outer), LENGTHS)
    assert sum(n for name, n in found.items() if "Outer.forward" in name and "ahead" not in name) == sum(LENGTHS)
    assert not any("Step.forward" in name for name in found)


def test_one_kernel_for_modules_of_one_class_each():
    steps = nn.ModuleList([Step() for _ in range(2)])
    h = nn.Parameter(torch.randn(2, DIM))

    def function(choices):
        state = h[0]
        for choice in choices:
            state = steps[choice](h[1], state)
        return state

    found = types_of(function, [[0, 1], [1], [0, 0, 1], [1, 1], [0, 1]])
    assert sum("Step.forward" in name and "ahead" not in name for name in found) == 2


# ---- without calls


def test_recursion_without_functions_is_found_by_structure():
    w, u = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)
    x = torch.randn(3, DIM)

    def encode(tree):
        if isinstance(tree, int):
            return x[tree]
        left, right = encode(tree[0]), encode(tree[1])
        return torch.tanh(w(left) + u(right) * 0.5).sigmoid()

    trees = [(0, 1), ((0, 1), 2), (0, (1, 2)), ((0, 1), (1, 2)), (2, 1)]
    found = types_of(encode, trees)
    assert len(found) == 1
    ((name, count),) = found.items()
    assert name.startswith("Tensor.sigmoid in test_recursion_without_functions_is_found_by_structure.<locals>.encode")
    assert count == 9


def test_what_is_read_twice_stays_a_value():
    layer = nn.Linear(DIM, DIM)

    def function(x, n):
        for _ in range(n):
            x = layer(x)
        a, b = x.tanh(), x.sigmoid()
        return a.exp(), b.log()

    found = types_of(function, torch.randn(6, DIM), LENGTHS)
    assert any(name.startswith("layer(") or "Linear" in name or "in_features" in name for name in found), found
    assert sum("test_find_cells.py" in name for name in found) == 2


# ---- what is no cell


def test_chains_of_any_length_inside_a_module_are_no_cells():
    class Any(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(DIM, DIM)

        def forward(self, x, n):
            for _ in range(n):
                x = self.layer(x).relu()
            return x

    model = Any()
    batched = edbatch.batch(model, policy="agenda")
    for lengths in ([2, 3, 2, 3, 2, 2, 3, 3], [4, 5, 4, 5, 4, 5, 4, 5], [6, 7, 6, 7, 6, 6, 7, 7]):
        edbatch.check(batched, torch.randn(8, DIM), lengths)
        (only,) = batched.stats.types
        assert only.num_nodes == sum(lengths)
        assert len(batched.pipeline.found._cells) == 1


def test_children_of_any_number_need_no_kernel_each():
    class Node(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.u = nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)

        def forward(self, x, children):
            return torch.tanh(self.w(x) + self.u(sum(children))) if children else torch.tanh(self.w(x))

    node = Node()

    def encode(tree, x):
        return node(x, [encode(child, x) for child in tree])

    def tree(rng, depth):
        return [tree(rng, depth - 1) for _ in range(rng.randrange(4))] if depth else []

    rng = random.Random(0)
    trees = [tree(rng, 4) for _ in range(12)]
    batched = edbatch.batch(encode, policy="agenda")
    edbatch.check(batched, trees, torch.randn(12, DIM))
    assert len([t for t in batched.stats.types if "Node.forward" in t.name and "ahead" not in t.name]) == 2
    assert len(batched.pipeline.found._cells) <= 3


def test_functions_with_many_ways_are_no_cells():
    def step(x, way):
        if way == 0:
            return x.tanh().exp()
        if way == 1:
            return x.sigmoid().log()
        if way == 2:
            return x.relu().sqrt()
        return x.abs().sin()

    batched = edbatch.batch(lambda x, way: step(x + 1.0, way), policy="agenda")
    batched(torch.rand(16, DIM), [i % 4 for i in range(16)])
    assert not any("step" in t.name and " in " not in t.name for t in batched.stats.types)


def test_rare_calls_stay_apart():
    found = types_of(Chain(), [1, 2])
    assert not any("Step.forward" in name for name in found)


def test_marked_cells_are_never_part_of_a_larger_one():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = edbatch.cell(Step())

        def forward(self, x, h):
            return self.inner(x, h).relu().exp()

    found = types_of(Chain(Outer), LENGTHS)
    assert found["step.inner(f64[4], f64[4])"] == sum(LENGTHS)
    assert sum(n for name, n in found.items() if "Outer.forward(f64[4])" in name) == sum(LENGTHS)  # relu and exp


def test_grad_modes_inside_keep_nodes_apart():
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.step = Step()

        def forward(self, x, h):
            with torch.no_grad():
                fixed = h.sigmoid().exp()
            return self.step(x, h) * fixed

    found = types_of(Chain(Outer), LENGTHS)
    assert not any("Outer.forward(" in name and " in " not in name for name in found)
    assert sum(n for name, n in found.items() if "Step.forward" in name and "ahead" not in name) == sum(LENGTHS)


@pytest.mark.parametrize("kind", ["hook", "random", "in place", "state", "nn.LSTM"])
def test_what_cannot_merge_stays_as_it_is(kind):
    class Outer(Step):
        def __init__(self):
            super().__init__()
            if kind == "hook":
                self.u.register_forward_hook(lambda module, args, result: result * 2.0)
            self.counting = edbatch.cell(Counting()) if kind == "state" else None
            self.lstm = nn.LSTM(DIM, DIM) if kind == "nn.LSTM" else None

        def forward(self, x, h):
            h = super().forward(x, h)
            if kind == "random":
                h = h + torch.bernoulli(torch.ones_like(h))
            if kind == "in place":
                h = nn.functional.relu(h.clone(), inplace=True)
            if self.counting is not None:
                h = self.counting(h)
            if self.lstm is not None:
                h = self.lstm(h[None])[0][0]
            return h.exp().neg().tanh()

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, h):
            self.calls += 1
            return h * 1.5

    types_of(Chain(Outer), LENGTHS)


def test_hooks_that_come_later_are_called():
    seen = []
    chain = Chain()
    batched = edbatch.batch(chain, policy="agenda")
    batched(LENGTHS)
    chain.step.u.register_forward_hook(lambda module, args, result: seen.append(1))
    edbatch.check(batched, LENGTHS)
    assert len(seen) >= sum(LENGTHS)
    assert not any("Step.forward(" in t.name and " in " not in t.name for t in batched.stats.types)


def test_autocast_inside():
    class Outer(Step):
        def forward(self, x, h):
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x, h).exp().float()

    torch.set_default_dtype(torch.float32)
    batched = edbatch.batch(Chain(Outer), policy="agenda")
    torch.testing.assert_close(batched(LENGTHS), batched.one_by_one(LENGTHS), rtol=2e-2, atol=2e-2)


def test_train_and_eval_and_new_weights():
    class Outer(Step):
        def forward(self, x, h):
            return super().forward(x, h) * (2.0 if self.training else 0.5)

    chain = Chain(Outer)
    batched = edbatch.batch(chain, policy="agenda")
    for training in (True, False, True):
        chain.train(training)
        edbatch.check(batched, LENGTHS)
        with torch.no_grad():
            chain.step.w.weight.mul_(0.5)
    chain.step.w = nn.Linear(DIM, DIM)
    edbatch.check(batched, LENGTHS)


def test_calls_nested_too_deeply_are_not_looked_at():
    """A recursion that is deeper than the frames that are followed."""
    import sys

    layer = nn.Linear(DIM, DIM)

    def down(x, depth):
        return layer(down(x, depth - 1).tanh()) if depth else x

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        edbatch.check(edbatch.batch(down, policy="agenda"), torch.randn(4, DIM), [1100, 1, 2, 3])
    finally:
        sys.setrecursionlimit(before)


def test_values_of_another_example():
    kept = []

    def function(x):
        y = (x.tanh().exp() + (kept[-1] if kept else 0.0)).relu()
        kept.append(y)
        return y.sin()

    xs = torch.randn(6, DIM)
    ours = edbatch.batch(function, policy="agenda")(xs)
    kept.clear()
    torch.testing.assert_close(ours, torch.stack([function(x) for x in xs]), rtol=1e-9, atol=1e-12)


def test_keys_and_new_examples():
    batched = edbatch.batch(Chain(), key=lambda length: length, policy="agenda")
    for lengths in (LENGTHS, [6, 7], [7, 1, 8], LENGTHS):
        edbatch.check(batched, lengths)
    assert len([t for t in batched.stats.types if "Step.forward" in t.name and "ahead" not in t.name]) == 1


# ---- random programs

OPS = {
    "torch.tanh({a})": 1,
    "{a}.sigmoid()": 1,
    "{a} + {b}": 2,
    "{a} * {b}": 2,
    "{a} - {b} * 0.5": 2,
    "layers[0]({a})": 1,
    "layers[1]({a}).relu()": 1,
    "torch.cat(({a}, {b})).view(2, -1).mean(0)": 2,
    "{a}.chunk(2)[0].repeat(2)": 1,
    "sum([{a}, {b}, {a}])": 2,
}


@st.composite
def programs(draw):
    """Source of a function of a vector and a list of choices, with helpers that it calls in a loop or by recursion."""
    lines = []
    for f in range(draw(st.integers(1, 3))):
        names = ["x", "y"]
        lines.append(f"def f{f}(x, y, n):")
        for i in range(draw(st.integers(1, 5))):
            a, b = draw(st.sampled_from(names)), draw(st.sampled_from(names))
            calls = [f"f{draw(st.integers(0, f - 1))}({a}, {b}, n)"] if f else []
            op = draw(st.sampled_from([*OPS, *calls])).format(a=a, b=b)
            is_loop = draw(st.integers(0, 9)) == 0
            lines.append(f"    v{i} = {a}" if is_loop else f"    v{i} = {op}")
            if is_loop:
                lines += ["    for _ in range(n):", f"        v{i} = torch.tanh(v{i} * 0.5 + {b})"]
            names.append(f"v{i}")
        lines.append(f"    return {draw(st.sampled_from(names[2:]))}")
    last = f
    lines += ["def main(x, choices):", "    y, kept = x, []", "    for c in choices:"]
    for f in range(last + 1):
        lines += [f"        if c == {f}:", f"            y = f{f}(x, y, len(choices) % 3)"]
    lines += ["        kept.append(y)", f"    y = {draw(st.sampled_from(list(OPS))).format(a='y', b='x')}"]
    lines += ["    return y, sum(kept)"]
    choices = st.lists(st.integers(0, last), min_size=1, max_size=4)
    return "\n".join(lines), draw(st.lists(choices, min_size=2, max_size=8))


@settings(max_examples=30)
@given(programs())
def test_merged_as_not_merged_as_one_by_one(program):
    source, choices = program
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Linear(DIM, DIM), nn.Linear(DIM, DIM)]).double()
    names = {"torch": torch, "layers": layers}
    exec(compile(source, "program.py", "exec"), names)
    xs = torch.randn(len(choices), DIM, dtype=torch.float64, requires_grad=True)
    found = []
    for find_cells in (True, False):
        batched = edbatch.batch(names["main"], policy="agenda")
        batched.switches = replace(batched.switches, find_cells=find_cells)
        edbatch.check(batched, xs, choices)
        edbatch.check(batched, xs, choices)
        found.append(batched.stats.num_nodes)
    assert found[0] <= found[1]
    keyed = edbatch.batch(names["main"], key=lambda x, c: tuple(c), policy="agenda")
    for _ in range(2):
        edbatch.check(keyed, xs, choices)


class CountsHashes:
    """A constant of a function; whoever hashes the function's code hashes it too."""

    hashed = 0

    def __hash__(self):
        CountsHashes.hashed += 1
        return 0


@pytest.mark.skipif(not RECORDS_IN_C, reason="without a C compiler nobody asks which function records")
def test_functions_whose_codes_lie_alike_in_memory_are_looked_up_once():
    counter = CountsHashes()

    def wave(x):
        return x.sigmoid()

    codes = [wave.__code__.replace(co_consts=(*wave.__code__.co_consts, counter)) for _ in range(1500)]
    alike = {}
    for code in codes:
        alike.setdefault((id(code) >> 5) % 256, []).append(code)
    waves = [types.FunctionType(code, globals()) for code in max(alike.values(), key=len)[:3]]
    assert len(waves) == 3

    def chain(x):
        for _ in range(20):
            for each in waves:
                x = each(x)
        return x

    batched = edbatch.batch(chain)
    CountsHashes.hashed = 0
    batched(torch.randn(4, DIM))
    assert 0 < CountsHashes.hashed < 20
