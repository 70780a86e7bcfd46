"""What is known of the user's program: which callables are cells (a call of one is one unit), what modules and tensors
are called, and whether modules changed between calls.

The lowest folder of `recording`: it imports none of the others.
"""
