"""The reader of lattices takes exactly the format; generated lattices look like the real ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import mean, stdev

import pytest

from edbatch.datasets import DatasetError, Lattice, load_lattices, random_lattices, read_lattices

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


def test_windows_line_ends_are_taken(write):
    assert read_lattices(write([line + "\r" for line in FILE])) == read_lattices(write(FILE))


@pytest.mark.parametrize(
    ("line", "content", "message"),
    [
        (1, "0", "expected the number of lattices, at least 1, found '0'"),
        (1, "2 3", "expected the number of lattices, at least 1, found '2 3'"),
        (1, "two", "expected the number of lattices, at least 1, found 'two'"),
        (2, "", "expected the number of nodes of lattice 1 of 2, at least 1, found ''"),
        (2, "0", "expected the number of nodes of lattice 1 of 2, at least 1, found '0'"),
        (2, "-3", "expected the number of nodes of lattice 1 of 2, at least 1, found '-3'"),
        (3, "0 5", "expected 3 tag ids, found 2"),
        (3, "0 5 6 7", "expected 3 tag ids, found 4"),
        (3, "0 5 O", "expected 3 tag ids, found '0 5 O'"),
        (3, "0\xa05 6 7", r"expected 3 tag ids, found '0\\xa05 6 7'"),
        (4, "", "expected the number of arcs and a pair `from token` for each, found ''"),
        (4, "1 0 17", "expected arcs to node 0 from nodes below 0, found one from 0"),
        (5, "1 0", "expected the number of arcs and a pair `from token` for each, found '1 0'"),
        (5, "1 0 17 18", "expected the number of arcs and a pair `from token` for each, found '1 0 17 18'"),
        (5, "2 0 17", "expected the number of arcs and a pair `from token` for each, found '2 0 17'"),
        (5, "1 1 17", "expected arcs to node 1 from nodes below 1, found one from 1"),
        (5, "1 -1 17", "expected the arcs of node 1 of 3, found '1 -1 17'"),
        (5, "1 0 ²", "expected the arcs of node 1 of 3, found '1 0 ²'"),
        (6, "x" * 50, f"expected the arcs of node 2 of 3, found '{'x' * 40}…'"),
        (7, "1 2 3", "expected a blank line between lattices 1 and 2 of 2, found '1 2 3'"),
    ],
)
def test_malformed_line_is_named(write, line, content, message):
    lines = list(FILE)
    lines[line - 1] = content
    with pytest.raises(DatasetError, match=rf"lattices\.txt, line {line}: {message}$"):
        read_lattices(write(lines))


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (1, "line 2: expected the number of nodes of lattice 1 of 2, at least 1, found the end of the file"),
        (2, "line 3: expected 3 tag ids, found the end of the file"),
        (5, "line 6: expected the arcs of node 2 of 3, found the end of the file"),
        (6, "line 7: expected a blank line between lattices 1 and 2 of 2, found the end of the file"),
        (7, "line 8: expected the number of nodes of lattice 2 of 2, at least 1, found the end of the file"),
    ],
)
def test_file_that_ends_early_is_refused(write, length, message):
    with pytest.raises(DatasetError, match=message):
        read_lattices(write([*FILE[:length], ""]))


def test_more_lattices_than_announced_are_refused(write):
    with pytest.raises(DatasetError, match="line 8: expected nothing after 1 lattices, found '2'"):
        read_lattices(write(["1", *FILE[1:]]))


def test_other_bad_files(write, tmp_path):
    with pytest.raises(DatasetError, match=r"line 1: expected lattices, found an empty file"):
        read_lattices(write([]))
    with pytest.raises(DatasetError, match=r"cannot read the lattices in .*missing\.txt"):
        read_lattices(tmp_path / "missing.txt")


def test_limit_reads_the_first_lattices(write):
    whole = read_lattices(write(FILE)).lattices
    assert read_lattices(write([*FILE[:6], "no lattice"]), limit=1).lattices == whole[:1]


def test_data_folder_is_used_and_named(monkeypatch, tmp_path):
    (tmp_path / "lattice").mkdir()
    (tmp_path / "lattice" / "train.txt").write_text("\n".join(FILE))
    monkeypatch.setenv("EDBATCH_DATA", str(tmp_path))
    assert load_lattices("train").source == str(tmp_path / "lattice" / "train.txt")
    with pytest.raises(DatasetError, match=r"dev\.txt is no file; give \(or set EDBATCH_DATA to\) a folder"):
        load_lattices("dev")
    monkeypatch.delenv("EDBATCH_DATA")
    assert len(load_lattices("train", folder=tmp_path).lattices) == 2
    with pytest.raises(DatasetError, match=r"no folder of data; give one, .* or use random_lattices instead"):
        load_lattices("train")


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
