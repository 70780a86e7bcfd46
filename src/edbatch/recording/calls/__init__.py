"""How one call of the user's function becomes a node of the recorded graph.

The signature of a call (what decides which calls run together), its type, its name; indexing; tensors that all examples
share; and short cuts for calls like earlier ones. Imports `recording.values`.
"""
