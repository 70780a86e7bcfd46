"""The command `edbatch`: a demo, workloads to run and train, learned policies and the benchmarks.

In: the words of a command line. Out: checked options for `report`, `bench` and `fuzz`, which do the work. Nothing
imports it.
"""

from edbatch.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """The entry point of the command."""
    app()
