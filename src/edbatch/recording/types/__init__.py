"""Types of nodes, their kernels, kept from call to call, and what a recording consists of.

Imports `recording.program` and `cells`.
"""
