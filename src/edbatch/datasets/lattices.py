"""Word lattices over characters: a file of numbers comes in, `Lattice` objects go out.

First line: how many lattices. Then for each the number of nodes, a line of one tag id per node, and a line
`number_of_arcs from token from token …` for each node, whose arcs come from earlier nodes; a blank line between two
lattices. Only an ASCII space separates. Anything else is an error, never skipped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from edbatch.datasets.files import DatasetError, check_split, data_file, read_lines

_NUMBERS = re.compile(r" *([0-9]{1,18}( +|$))*")  # at most 18 digits, which fit into 64 bits
_MAX_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Lattice:
    """Node `i` has the tag id `tags[i]` and the arcs `arcs[i]`, pairs of an earlier node to come from and a token id.

    An arc from node `i - 1` reads a character, any other a word; characters and words are numbered separately.
    """

    tags: tuple[int, ...]
    arcs: tuple[tuple[tuple[int, int], ...], ...]


class LatticeBank(NamedTuple):
    """Lattices, and where they are from, in words."""

    lattices: list[Lattice]
    source: str


def read_lattices(path: str | os.PathLike[str], limit: int | None = None) -> LatticeBank:
    """Reads a file of lattices.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     _ = Path(folder, "lattices.txt").write_text("1\\n3\\n0 5 5\\n0\\n1 0 17\\n2 1 18 0 99")
    ...     bank = read_lattices(Path(folder, "lattices.txt"))
    >>> bank.lattices
    [Lattice(tags=(0, 5, 5), arcs=((), ((0, 17),), ((1, 18), (0, 99))))]

    Args:
        path: A file of numbers in the format above.
        limit: Reads so many lattices from the start of the file; without it all.

    Raises:
        DatasetError: The file cannot be read or is not in the format; names the file, the line and what was expected.
    """
    lines = _LineReader(read_lines(path, "lattices"))
    try:
        return LatticeBank(list(islice(_parse(lines), limit)), str(path))
    except DatasetError as error:
        raise DatasetError(f"{path}, line {lines.number}: {error}") from None


def load_lattices(split: str, folder: str | os.PathLike[str] | None = None, limit: int | None = None) -> LatticeBank:
    """The lattices `<folder>/lattice/<split>.txt`.

    Args:
        split: "train" or "dev".
        folder: Where the data is; by default the environment variable EDBATCH_DATA.
        limit: As for `read_lattices`.

    Raises:
        DatasetError: As for `read_lattices`, or there is no folder or no such file.
    """
    return read_lattices(data_file(f"lattice/{check_split(split)}.txt", folder, "random_lattices"), limit)


class _LineReader:
    """Gives line after line and knows the number of the one it gave last."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.number = lines, 0

    def next(self, expected: str) -> str:
        self.number += 1
        if self.number > len(self.lines):
            raise DatasetError(f"expected {expected}, found the end of the file")
        return self.lines[self.number - 1]

    def numbers(self, expected: str) -> tuple[int, ...]:
        line = self.next(expected)
        if not _NUMBERS.fullmatch(line):
            raise DatasetError(f"expected {expected}, found {_shown(line)}")
        return tuple(map(int, line.split()))

    def count(self, expected: str) -> int:
        """The only number of the next line, at least 1."""
        numbers = self.numbers(expected)
        if len(numbers) != 1 or numbers[0] < 1:
            raise DatasetError(f"expected {expected}, found {_shown(self.lines[self.number - 1])}")
        return numbers[0]


def _parse(lines: _LineReader) -> Iterator[Lattice]:
    num_lattices = lines.count("the number of lattices, at least 1")
    for lattice in range(1, num_lattices + 1):
        if lattice > 1:
            _expect_blank(lines, f"a blank line between lattices {lattice - 1} and {lattice} of {num_lattices}")
        num_nodes = lines.count(f"the number of nodes of lattice {lattice} of {num_lattices}, at least 1")
        tags = lines.numbers(f"{num_nodes} tag ids")
        if len(tags) != num_nodes:
            raise DatasetError(f"expected {num_nodes} tag ids, found {len(tags)}")
        yield Lattice(tags, tuple(_parse_arcs(lines, node, num_nodes) for node in range(num_nodes)))
    while lines.number < len(lines.lines):
        _expect_blank(lines, f"nothing after {num_lattices} lattices")


def _parse_arcs(lines: _LineReader, node: int, num_nodes: int) -> tuple[tuple[int, int], ...]:
    numbers = lines.numbers(f"the arcs of node {node} of {num_nodes}")
    if not numbers or len(numbers) != 1 + 2 * numbers[0]:
        expected = "the number of arcs and a pair `from token` for each"
        raise DatasetError(f"expected {expected}, found {_shown(lines.lines[lines.number - 1])}")
    late = [source for source in numbers[1::2] if source >= node]
    if late:
        raise DatasetError(f"expected arcs to node {node} from nodes below {node}, found one from {late[0]}")
    return tuple(zip(numbers[1::2], numbers[2::2], strict=True))


def _expect_blank(lines: _LineReader, expected: str) -> None:
    line = lines.next(expected)
    if line.strip(" "):
        raise DatasetError(f"expected {expected}, found {_shown(line)}")


def _shown(line: str) -> str:
    return repr(line if len(line) <= _MAX_SHOWN else line[:_MAX_SHOWN] + "…")
