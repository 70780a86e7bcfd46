"""`edbatch bench scale`: how edbatch behaves on large graphs, long chains, large PQ trees and in a fresh process.

In: sizes and repeats. Out: seconds. PQ trees decide how values lie in memory inside a cell.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE
from rich.table import Table

import edbatch
from edbatch.bench import measure
from edbatch.bench.measure import BenchError, Spread
from edbatch.bench.recording import LSTMChain
from edbatch.datasets import Tree, random_trees

POLICIES = ("depth", "agenda", "agenda-remaining", "ratio-greedy", "bound-greedy", "learned")
IMPORT = "import time, torch; begin = time.perf_counter(); import edbatch; print(time.perf_counter() - begin)"
PREPARE = """
import time, numpy, torch, edbatch
from edbatch.datasets import random_trees
from edbatch.models import TreeLSTM
from edbatch.runtime.plan import make_plan
from edbatch.runtime.needs import find_needs
bank = random_trees(4, seed=0, num_words=100)
batched = edbatch.batch(TreeLSTM(words=len(bank.vocabulary), classes=5, dim=8))
"""
FIRST_CALL = f"""{PREPARE}
begin = time.perf_counter()
batched(bank.trees)[0].sum().backward()
print(time.perf_counter() - begin)
"""
# Times the compilation of all kernels by numba, and nothing else: cells are captured before the clock starts.
ALL_KERNELS = f"""{PREPARE}
recording, _ = batched.pipeline.record_examples((bank.trees,), {{}})
begin = time.perf_counter()
recording.graph.lower_bound()
for policy in {(*POLICIES, "ratio-greedy-backward")}:
    schedule = edbatch.schedule(recording.graph, policy)
make_plan(recording, schedule)
find_needs(recording, numpy.ones(len(recording.table.output_arenas), dtype=bool))
print(time.perf_counter() - begin)
"""


def run(
    num_nodes: int = 1_000_000, num_steps: int = 20_000, num_leaves: int = 100_000, repeats: int = 5
) -> dict[str, Any]:
    """Measures and returns the result, ready for JSON."""
    graph = tree_graph(random_trees(500, seed=0).trees, num_nodes)
    with measure.progress("measuring", len(POLICIES) + 5) as advance:
        schedules = {}
        for policy in POLICIES:
            schedules[policy] = _schedule(graph, policy, repeats)
            advance()
        chain = _chain(num_steps, repeats)
        advance()
        pq_tree = _pq_tree(num_leaves, repeats)
        advance()
        imports = Spread.of([_in_fresh_process(IMPORT) for _ in range(repeats)])
        advance()
        uncached, cached = first_use(FIRST_CALL, repeats)
        advance()
        compiled, loaded = first_use(ALL_KERNELS, repeats)
    return {
        "machine": measure.machine_facts(),
        "num_nodes": graph.num_nodes,
        "lower_bound": graph.lower_bound(),
        "schedule": schedules,
        "num_steps": num_steps,
        "chain_seconds": chain._asdict(),
        "num_leaves": num_leaves,
        "pq_tree_seconds": pq_tree._asdict(),
        "import_seconds_beyond_torch": imports._asdict(),
        "first_call_seconds_without_cache": uncached._asdict(),
        "first_call_seconds_with_cache": cached._asdict(),
        "numba_seconds_without_cache": compiled._asdict(),
        "numba_seconds_with_cache": loaded._asdict(),
    }


def tree_graph(trees: Iterable[Tree], num_nodes: int) -> edbatch.Graph:
    """The graph of these trees, with a state and an output per tree node; trees are repeated until there are
    `num_nodes` or more."""
    types: list[str] = []
    inputs: list[list[int]] = []
    for tree in trees:
        states: list[int] = []
        for node in tree.nodes():
            inputs.append([] if node.is_leaf else [states.pop(), states.pop()][::-1])
            types.append("leaf" if node.is_leaf else "node")
            states.append(len(types) - 1)
            types.append("out")
            inputs.append([states[-1]])
    once = edbatch.Graph.from_lists(types, inputs)
    times = -(-num_nodes // once.num_nodes)
    shift = np.arange(times)[:, None]
    return edbatch.Graph(
        types=np.tile(once.types, times),
        inputs=(once.inputs + shift * once.num_nodes).ravel(),
        offsets=np.append((once.offsets[:-1] + shift * len(once.inputs)).ravel(), times * len(once.inputs)),
        type_names=once.type_names,
    )


def _schedule(graph: edbatch.Graph, policy: str, repeats: int) -> dict[str, Any]:
    maker = edbatch.policies.from_name(policy)
    schedule = maker.run(graph)  # the first run compiles, and learns
    times = measure.interleave({policy: lambda: maker.run(graph)}, repeats)
    return {
        "num_batches": schedule.num_batches,
        "microseconds_per_node": times.spread(policy).scaled(1e6 / graph.num_nodes)._asdict(),
    }


def _chain(num_steps: int, repeats: int) -> Spread:
    """Times a long chain of cells, recorded and run, forward only."""
    batched = edbatch.batch(LSTMChain(8, num_steps))
    xs = torch.zeros(1, 8)
    with torch.inference_mode():
        return measure.interleave({"chain": lambda: batched(xs)}, repeats).spread("chain")


def _pq_tree(num_leaves: int, repeats: int) -> Spread:
    """Times a PQ tree with half as many sets as leaves; a set has 2 to 20 leaves, consecutive in a random order."""
    rng = random.Random(0)
    order = rng.sample(range(num_leaves), num_leaves)
    sets = []
    for _ in range(num_leaves // 2):
        first = rng.randrange(num_leaves - 1)
        sets.append(order[first : first + rng.randint(2, 20)])

    def reduce() -> None:
        tree = edbatch.PQTree(range(num_leaves))
        for subset in sets:
            if not tree.reduce(subset):
                raise BenchError("a PQ tree refused a set that can be consecutive")

    return measure.interleave({"tree": reduce}, repeats).spread("tree")


def first_use(code: str, repeats: int) -> tuple[Spread, Spread]:
    """Times code in a fresh process: with an empty cache folder, so that every kernel is compiled, and a filled one."""
    empty, filled = [], []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"EDBATCH_CACHE": folder}
            empty.append(_in_fresh_process(code, environment))
            filled.append(_in_fresh_process(code, environment))
    return Spread.of(empty), Spread.of(filled)


def _in_fresh_process(code: str, environment: dict[str, str] | None = None) -> float:
    """Runs code that prints seconds, and returns these."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=os.environ | (environment or {}), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchError(f"a fresh process failed: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout.splitlines()[-1])


def tables(result: dict[str, Any]) -> list[Table]:
    """The result as tables for people."""
    title = f"Scheduling {result['num_nodes']:,} nodes, lower bound {result['lower_bound']} batches"
    schedules = Table("policy", "batches", "µs per node", title=title, box=SIMPLE)
    for policy, row in result["schedule"].items():
        schedules.add_row(policy, str(row["num_batches"]), measure.text(row["microseconds_per_node"]))
    caption = f"{result['machine']['cpu']}, {result['machine']['torch_threads']} threads"
    seconds = Table("", "seconds", "rounds", caption=caption, box=SIMPLE)
    for name, key in (
        (f"a chain of {result['num_steps']:,} cells, end to end", "chain_seconds"),
        (f"a PQ tree of {result['num_leaves']:,} leaves, half as many sets", "pq_tree_seconds"),
        ("import edbatch, beyond import torch", "import_seconds_beyond_torch"),
        ("first call, nothing compiled yet", "first_call_seconds_without_cache"),
        ("first call, kernels from disk", "first_call_seconds_with_cache"),
        ("numba alone: compiling every kernel", "numba_seconds_without_cache"),
        ("numba alone: loading them from disk", "numba_seconds_with_cache"),
    ):
        seconds.add_row(name, measure.text(result[key]), str(result[key]["rounds"]))
    return [schedules, seconds]
