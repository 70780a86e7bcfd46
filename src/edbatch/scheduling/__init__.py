"""Decides which nodes of a mini-batch run together, and in which order: graphs, policies, and how a policy is learned.

In: a `Graph` of recorded calls (nodes); nodes of one type can run as one batch. Out: a `Schedule`: batches of nodes of
one type, in an order in which every node runs after its inputs. Imports no torch, and of this package only `storage`
and `errors`.
"""
