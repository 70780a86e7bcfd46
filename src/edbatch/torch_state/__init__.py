"""The state of torch that a batched call changes for a while, or must leave as it was.

Modes, methods that are replaced, settings of dynamo, what modules hold. `inside(contexts, function)` runs a function
and puts all of it back, even if Ctrl-C interrupts it. Imports only `torch_insides` and `errors`; any folder that uses
torch may import it.
"""
