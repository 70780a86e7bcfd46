"""The state of torch that a call changes or must not see: modes, replaced methods, hooks, the modules of a model.

`inside(contexts, function)` runs a function and puts everything back, whatever interrupts it. Imports `torch_insides`
and errors alone; any room that knows torch may import it.
"""
