"""What compiled loops call: BLAS, exp and tanh on vectors, memory access, integers that wrap.

Imports only `storage`, `torch_insides` and `torch_state`.
"""
