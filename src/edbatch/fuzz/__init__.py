"""A fuzzer: random programs run batched and one by one, and every difference becomes a small script.

    RandomProgram ─print─▶ code ─run, compare─▶ outcome ─shrink─▶ a smaller RandomProgram ─print─▶ script

A program, a model with its examples, is data (`program.py`). `generating.py`, `functions.py` and `lines.py` draw it at
random from tables of what users write (`operations.py`, `surroundings.py`). `comparing.py` runs its code both ways,
`worker.py` does so in a separate process, `shrinking.py` makes failing programs small, `script.py` prints them, and
`run.py` is the command.
"""
