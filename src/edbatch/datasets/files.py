"""Data files: a path comes in, parsed lines go out, or an error that names the file, the line and what was expected."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from edbatch.errors import EdbatchError

Parsed = TypeVar("Parsed")


class DatasetError(EdbatchError, ValueError):
    """A data file is missing or not in its format."""


def read_lines(path: str | os.PathLike[str], content: str) -> list[str]:
    """The lines of a UTF-8 file that holds `content` (in words, for the errors), without their ends."""
    try:
        lines = Path(path).read_bytes().decode("utf-8-sig").split("\n")  # splitlines() would also split at U+0085
    except OSError as error:
        raise DatasetError(f"cannot read the {content} in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line_number = error.object[: error.start].count(b"\n") + 1
        raise DatasetError(f"{path}, line {line_number}: expected UTF-8 text ({error.reason})") from error
    if lines[-1] == "":
        lines.pop()
    if not lines:
        raise DatasetError(f"{path}, line 1: expected {content}, found an empty file")
    return [line.removesuffix("\r") for line in lines]


def parse_lines(
    path: str | os.PathLike[str], content: str, parse: Callable[[str], Parsed], limit: int | None = None
) -> list[Parsed]:
    """Parses each line, or the first `limit` lines; file and line are added to DatasetErrors of `parse`."""
    return parse_each(path, read_lines(path, content)[:limit], parse)


def parse_each(path: str | os.PathLike[str], lines: Iterable[str], parse: Callable[[str], Parsed]) -> list[Parsed]:
    """Parses the first lines of a file, which are given; file and line are added to DatasetErrors of `parse`."""
    parsed = []
    for number, line in enumerate(lines, start=1):
        try:
            parsed.append(parse(line))
        except DatasetError as error:
            raise DatasetError(f"{path}, line {number}: {error}") from None
    return parsed


def data_folder(folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Where the real data is: the folder given, else the environment variable EDBATCH_DATA, else nowhere.

    >>> data_folder("data").name
    'data'
    """
    folder = folder or os.environ.get("EDBATCH_DATA")
    return Path(folder) if folder else None


def data_file(name: str, folder: str | os.PathLike[str] | None, generator: str) -> Path:
    """The file `<folder>/<name>`; without a folder the error names the generator to use instead."""
    found = data_folder(folder)
    if found is None:
        raise DatasetError(f"no folder of data; give one, set EDBATCH_DATA to one, or use {generator} instead")
    path = found / name
    if not path.is_file():
        raise DatasetError(f"{path} is no file; give (or set EDBATCH_DATA to) a folder that holds it")
    return path


def check_split(split: str) -> str:
    """Returns the name of a split, or raises if there is no such split.

    >>> check_split("dev")
    'dev'
    """
    if split not in ("train", "dev"):
        raise DatasetError(f'expected the split "train" or "dev", found {split!r}')
    return split
