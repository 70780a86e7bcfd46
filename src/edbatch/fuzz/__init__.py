"""A fuzzer: random programs run batched and one by one, and every difference becomes a small script.

    Program ─print─▶ code ─run, compare─▶ outcome ─shrink─▶ a smaller Program ─print─▶ script

A program is data (`program.py`), drawn from tables of what users write (`operations.py`, `surroundings.py`) by
`generating.py`. `comparing.py` runs its code both ways, `worker.py` does so in a process of its own, `shrinking.py` makes
failing programs small, `run.py` is the command.
"""
