"""What compiled loops call: BLAS, exp and tanh on vectors, memory access, integers that wrap.

Imports only `storage` and `torch_state`.
"""
