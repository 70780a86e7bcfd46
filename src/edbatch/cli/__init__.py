"""The command `edbatch`: a demo, workloads to run and train, learned policies and the benchmarks."""

from edbatch.cli.commands import app

__all__ = ["app", "main"]


def main() -> None:
    """The entry point of the command."""
    app()
