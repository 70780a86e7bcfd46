"""Lattices are read as they are; generated lattices look like the real ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import mean, stdev

import pytest

from edbatch.datasets import DatasetError, Lattice, random_lattices, read_lattices

FIRST = ["3", "0 5 6", "0", "1 0 17", "2 1 18 0 99"]
SECOND = ["2", "0 5", "0 ", "1 0 20"]
FILE = ["2", *FIRST, "", *SECOND]


@pytest.fixture
def write(tmp_path: Path):
    def write(lines: list[str]) -> Path:
        path = tmp_path / "lattices.txt"
        path.write_text("\n".join(lines), encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("end", [[], [""], ["", "", ""]])
def test_reads_tags_and_arcs(write, end):
    lattices, source = read_lattices(write(FILE + end))
    assert lattices == [
        Lattice((0, 5, 6), ((), ((0, 17),), ((1, 18), (0, 99)))),
        Lattice((0, 5), ((), ((0, 20),))),
    ]
    assert source.endswith("lattices.txt")


def test_more_lattices_than_announced_are_refused(write):
    with pytest.raises(DatasetError, match="line 8: expected nothing after 1 lattices, found '2'"):
        read_lattices(write(["1", *FILE[1:]]))


def test_limit_reads_the_first_lattices(write):
    whole = read_lattices(write(FILE)).lattices
    assert read_lattices(write([*FILE[:6], "no lattice"]), limit=1).lattices == whole[:1]


def format_lattices(lattices: list[Lattice]) -> list[str]:
    lines = [str(len(lattices))]
    for lattice in lattices:
        lines += [str(len(lattice.tags)), " ".join(map(str, lattice.tags))]
        lines += [" ".join(map(str, (len(arcs), *(number for arc in arcs for number in arc)))) for arcs in lattice.arcs]
        lines.append("")
    return lines


def test_generated_lattices_are_in_the_format(write):
    lattices = random_lattices(20, seed=3).lattices
    assert read_lattices(write(format_lattices(lattices))).lattices == lattices


def test_generated_lattices_depend_on_the_seed_alone():
    assert random_lattices(20, seed=7).lattices == random_lattices(20, seed=7).lattices
    assert random_lattices(20, seed=7).lattices == random_lattices(30, seed=7).lattices[:20]
    assert random_lattices(20, seed=7).lattices != random_lattices(20, seed=8).lattices


def test_generated_statistics_are_roughly_those_of_the_real_lattices():
    lattices = random_lattices(2000, seed=0).lattices
    lengths = [len(lattice.tags) for lattice in lattices]
    assert mean(lengths) == pytest.approx(44, abs=2)
    assert stdev(lengths) == pytest.approx(27.7, abs=2)
    nodes = [(node, arcs) for lattice in lattices for node, arcs in enumerate(lattice.arcs) if node]
    assert all(arcs[0][0] == node - 1 for node, arcs in nodes)
    num_words = Counter(len(arcs) - 1 for _, arcs in nodes)
    real = {0: 0.519, 1: 0.427, 2: 0.048, 3: 0.006}
    assert {num: num_words[num] / len(nodes) for num in real} == pytest.approx(real, abs=0.03)
    reaches = Counter(node - source for node, arcs in nodes for source, _ in arcs[1:])
    real = {2: 0.861, 3: 0.112, 4: 0.021, 5: 0.005}
    assert {reach: reaches[reach] / reaches.total() for reach in real} == pytest.approx(real, abs=0.02)
    assert (min(reaches), max(reaches)) == (2, 6)
    tags = Counter(tag for lattice in lattices for tag in lattice.tags[1:])
    assert tags[3] / tags.total() == pytest.approx(0.84, abs=0.04)
    assert all(lattice.tags[0] == 0 for lattice in lattices)
