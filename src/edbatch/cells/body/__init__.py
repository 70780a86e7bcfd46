"""The body of a cell: its ops as straight-line code over the values of one example. Bodies are rewritten here.

In: the ops that `capture` wrote down. Out: simpler bodies, and the programs that a body is split into: prologue (once
per mini-batch), infer or forward, backward, and finish (once, at the end). The lowest room of `cells`.
"""
