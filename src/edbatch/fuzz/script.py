"""The script of a finding: the program and the comparison in one file, which needs only torch and edbatch."""

from __future__ import annotations

import inspect

from edbatch.fuzz import comparing
from edbatch.fuzz.program import RandomProgram, code_of
from edbatch.fuzz.worker import Outcome

END = """

if __name__ == "__main__":
    torch.set_num_threads(1)
    kind, message = compare(make, SETTINGS)
    print(kind + ": " + message)
    raise SystemExit(1 if kind in FAILURES else 0)
"""


def script_of(program: RandomProgram, outcome: Outcome) -> str:
    """The text of a script that ends with exit code 1 as long as the fault is there."""
    told = f"{outcome.kind}: {outcome.message}".replace("\\", "\\\\").replace('"""', "'''")
    head = f'"""Found by edbatch fuzz, program {program.number}:\n\n{told}\n"""\n\n'
    source = inspect.getsource(comparing).split('"""', 2)[2].lstrip("\n")
    top, below = source.split("\n\n\n", 1)
    return "\n".join([head + top + "\n\n", code_of(program), "", below.rstrip("\n"), END])
