"""What a user sees when a command fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from edbatch.errors import EdbatchError


@contextmanager
def clear_errors() -> Iterator[None]:
    """A user's mistake is one sentence on stderr and exit code 1; Ctrl-C is exit code 130. Neither is a traceback."""
    try:
        yield
    except (KeyboardInterrupt, SystemError) as error:
        if not _is_interrupt(error):
            raise
        if not (isinstance(error, KeyboardInterrupt) and error.args):  # else it was said already
            typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except (EdbatchError, OSError) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether it comes from Ctrl-C; inside a kernel, numba makes a SystemError of it, caused by another one or two."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)
