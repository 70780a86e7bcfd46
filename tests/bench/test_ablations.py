"""`edbatch bench ablations`: every switch is off in its turn, and what it reports is complete."""

from __future__ import annotations

import io
import json
from dataclasses import fields

import pytest
import torch
from rich.console import Console

from edbatch.bench import ablations
from edbatch.bench.measure import BenchError
from edbatch.switches import Switches


@pytest.fixture(autouse=True)
def generated_data(monkeypatch):
    monkeypatch.delenv("EDBATCH_DATA", raising=False)


ABOUT_KERNELS = "compile", "exact_math", "may_run_alone"


def race_has(race, field):
    return getattr(race.batched.switches, field.name)


def test_every_switch_is_measured():
    """Those of rewrites, and those of cells that run as torch ops; `bench unfavourable` is about the others."""
    names = {field.name for field in fields(Switches)} - {"compile", "exact_math", "may_run_alone"}
    off = [name for switches in (ablations.FUSED, ablations.TORCH_OPS) for name in switches.values()]
    assert {name for switch in off for name in switch} == names


def test_ablations(monkeypatch):
    races, without = {}, ablations._without
    monkeypatch.setattr(ablations, "_without", lambda off, *of: races.setdefault((off, len(races)), without(off, *of)))
    settings = ablations.Settings(("lattice-lstm",), batch_size=4, hidden=8, rounds=3, threads=1)
    settings.check()
    result = json.loads(json.dumps(ablations.run(settings)))
    for (off, _), race in races.items():
        assert tuple(f.name for f in fields(Switches) if f.name not in ABOUT_KERNELS and not race_has(race, f)) == off
        assert race.batched.pipeline.switches == race.batched.switches
    (row,) = result["workloads"].values()
    all_of_them = ["everything", "everything, again", *ablations.FUSED, "key="]
    for mode in ("infer", "train"):
        names = [name for name in all_of_them if mode == "train" or name != "deferred gradients"]
        assert list(row[mode]["ms"]) == list(row[mode]["graphs"]) == names
        assert list(row[mode]["ratio_to_everything"]) == names[1:]
        assert {spread["rounds"] for spread in row[mode]["ratio_to_everything"].values()} == {3}
        batches = {name: graph["num_batches"] for name, graph in row[mode]["graphs"].items()}
        assert batches["everything"] == batches["everything, again"] == batches["key="]
        nodes = {name: graph["num_nodes"] for name, graph in row[mode]["graphs"].items()}
        assert nodes["hoisting"] < nodes["everything"] == nodes["key="]
        assert row[mode]["graphs"]["order inside batches"]["views"] < row[mode]["graphs"]["everything"]["views"]
    console = Console(width=150, file=io.StringIO())
    console.print(*ablations.tables(result))
    for text in ("(everything, again)", "deferred gradients", "to everything", "lattice-lstm", "infer", "train"):
        assert text in console.file.getvalue()
    heads, _, *lines = [line for line in ablations.markdown(result).splitlines() if line.startswith("|")]
    assert heads.split(" | ")[3:] == ["again", *ablations.FUSED, "key= |"]
    assert [line.split(" | ")[:2] for line in lines] == [["| lattice-lstm", "infer"], ["| lattice-lstm", "train"]]
    assert {line.count("|") for line in lines} == {heads.count("|")}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_as_torch_ops(dtype, monkeypatch):
    races, without = {}, ablations._without
    monkeypatch.setattr(ablations, "_without", lambda off, *of: races.setdefault((off, len(races)), without(off, *of)))
    settings = ablations.Settings(("tree-lstm",), 2, 4, rounds=3, mode="train", torch_ops=True, dtype=dtype)
    settings.check()
    result = ablations.run(settings)
    (row,) = result["workloads"].values()
    assert list(row["train"]["ratio_to_everything"]) == ["everything, again", *ablations.TORCH_OPS, "key="]
    assert not any(race.batched.switches.compile for race in races.values())
    assert {p.dtype for race in races.values() for p in race.model.parameters()} == {ablations.DTYPES[dtype]}
    assert f"all cells as torch ops, {dtype}:" in ablations.markdown(result)


@pytest.mark.parametrize("mode", ["infer", "train"])
def test_one_mode(mode, monkeypatch):
    monkeypatch.setenv("EDBATCH_COMPILE", "0")
    settings = ablations.Settings(("tree-lstm",), batch_size=2, hidden=4, rounds=3, mode=mode)
    row = ablations.run(settings)["workloads"]["tree-lstm"]
    assert [key for key in ("infer", "train") if key in row] == [mode]


def test_wrong_results_are_not_timed(monkeypatch):
    def spoiled(off, race, settings):
        if off == ("hoist",):
            with torch.no_grad():
                race.one_by_one.model.out.linear.bias[0] += 1
        return race

    monkeypatch.setattr(ablations, "_without", spoiled)
    monkeypatch.setenv("EDBATCH_COMPILE", "0")
    with pytest.raises(BenchError, match=r"nothing was timed, because .*: losses of tree-lstm, hoisting"):
        ablations.run(ablations.Settings(("tree-lstm",), batch_size=2, hidden=4, rounds=3))


def test_what_is_refused():
    with pytest.raises(BenchError, match="2 rounds are too few for a median to trust; ask for 3 or more"):
        ablations.Settings(rounds=2).check()
    with pytest.raises(BenchError, match="there is no mode 'sideways'; choose one of infer, train or both"):
        ablations.Settings(mode="sideways").check()
    with pytest.raises(BenchError, match="there is no measure of 'int8'; choose one of float32, bfloat16"):
        ablations.Settings(dtype="int8").check()
    with pytest.raises(BenchError, match="kernels are not fused in bfloat16; measure its torch ops with --torch-ops"):
        ablations.Settings(dtype="bfloat16").check()
