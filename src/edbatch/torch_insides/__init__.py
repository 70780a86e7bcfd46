"""The one place that uses private names of torch; the rest of the package imports them from here.

In: names that torch does not promise to keep. Out: the same objects under our own names, each with a line that says
what it is needed for. `tests/test_torch_door.py` finds private names that are used anywhere else. `tests/torch_insides`
tests what we rely on in every name here, so that a new torch breaks a test that names the reason.

All names exist in torch 2.6.0, 2.13.0 and 2.15.0, on which all tests ran, unless a line says
otherwise. Nothing here imports what `import torch` has not imported already, except for `fake`, which does not import
the compiler either.
"""
