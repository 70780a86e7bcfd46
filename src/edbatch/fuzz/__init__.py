"""A fuzzer: random programs run batched and one by one, and every difference becomes a small script.

    Program ─print─▶ code ─run, compare─▶ outcome ─shrink─▶ a smaller Program ─print─▶ script

A program is data (`program.py`), drawn by `generating.py`, `functions.py` and `lines.py` from tables of what users
write (`operations.py`, `surroundings.py`). `comparing.py` runs its code both ways, `worker.py` does so in a process of
its own, `shrinking.py` makes failing programs small, `script.py` prints them, `run.py` is the command.
"""
