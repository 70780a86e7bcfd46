"""From a graph to a plan, in ints alone: no torch here.

`graph` is what recording hands over, `policies` (loops in `frontier`, search in `exact`) decide what to launch next,
and `schedule` is what they decide. `pq_tree` stands for all orders in which chosen sets are consecutive. Names are
imported from their modules; numba is imported at first use.
"""
