"""What is known of the user's program: which callables are cells, the names of modules, and whether they changed.

The lowest room of `recording`.
"""
