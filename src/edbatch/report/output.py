"""Where results of commands go: lines on the console, progress bars, and files, which are written all or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress

from edbatch.errors import EdbatchError


class OutputError(EdbatchError, OSError):
    """The folder for the results cannot be written to."""


def say(console: Console, line: str) -> None:
    """Prints a line without wrapping or markup, so that paths and code can be copied from it."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bar(description: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """A progress bar on stderr, if that is a terminal; yields a function that sets how far it is, with a note."""
    console = Console(stderr=True)
    columns = "{task.description}", BarColumn(), MofNCompleteColumn(), "{task.fields[note]}"
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(description, total=total, note="")
        yield lambda completed, note: bar.update(task, completed=completed, note=note)


@contextmanager
def output_folder(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """A scope with a folder to write to. If missing, it is made, and removed after an error if it is still empty."""
    missing = [f for f in (folder, *folder.parents) if not f.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix="."):
                pass
        except OSError as error:
            raise OutputError(
                f"cannot write into the folder {folder}: {error.strerror}; give another one by --output"
            ) from error
        for name in names:
            if (folder / name).is_dir():
                raise OutputError(f"cannot write {folder / name}: it is a folder; give another folder by --output")
        yield
    except BaseException:
        for made in missing:
            if made.is_dir() and not any(made.iterdir()):
                made.rmdir()
        raise


def write_files(folder: Path, contents: Mapping[str, bytes | Callable[[Path], object]]) -> None:
    """Writes all files, each from its bytes or by a function of a path. None is put in place before all are written."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
        for name, content in contents.items():
            path = Path(temporary) / name
            if callable(content):
                content(path)
            else:
                path.write_bytes(content)
        for name in contents:
            os.replace(Path(temporary) / name, folder / name)
