"""One call becomes a node: its signature, its entry in the tables of the recording, its name, and short ways for calls
seen before.

Imports `recording.values`.
"""
