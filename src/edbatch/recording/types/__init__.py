"""Types of nodes, the cache of their kernels, and `Recording`, which is what the recording of a mini-batch gives.

A node is one recorded call. Nodes of one type may run as one batch, by one kernel. Imports `recording.program` and
`cells`.
"""
