"""Which batch comes next: graphs of typed nodes, policies that schedule them, and how a policy is learned.

In: a `Graph`. Out: a `Schedule`, batches of nodes of one type in an order that respects all edges. Knows no torch.
All other rooms may import it.
"""
