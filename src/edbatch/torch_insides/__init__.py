"""The one door to torch's insides: every private name of torch that the package uses comes from here.

Comes in: names that torch does not promise to keep. Goes out: the same under names of ours, each with a line that says
what it is needed for. `tests/test_torch_door.py` finds private names anywhere else; `tests/torch_insides` says of each
name here what we rely on, so that a new torch breaks a test that names the reason.

All of it is in torch 2.6.0 and 2.13.0, the oldest and the newest that the tests ran on; a line says so where it is not.
Nothing here imports what `import torch` has not imported, but for `fake`, and that no compiler.
"""
