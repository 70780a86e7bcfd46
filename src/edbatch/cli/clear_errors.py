"""What a user sees when a command fails: one sentence instead of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from edbatch.errors import EdbatchError


@contextmanager
def clear_errors() -> Iterator[None]:
    """A scope in which a user's mistake becomes a sentence on stderr and exit code 1, and Ctrl-C exit code 130."""
    try:
        yield
    except (KeyboardInterrupt, SystemError) as error:
        if not _is_interrupt(error):
            raise
        if not (isinstance(error, KeyboardInterrupt) and error.args):  # else its message was printed before
            typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except (EdbatchError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether an error comes from Ctrl-C. Inside a kernel, numba turns that into one or more nested SystemErrors."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)
