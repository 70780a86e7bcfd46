"""Rows of numbers that sums and exponentials stumble over: infinities, not a number, and mixtures with plain ones."""

import math

INF, NAN = math.inf, math.nan
ODD = {
    "plain": [1.0, -2.0, 0.5, 3.0],
    "ties": [2.0, 2.0, -1.0, 2.0],
    "one inf": [1.0, INF, 0.5, 3.0],
    "first inf": [INF, 1.0, 0.5, 3.0],
    "two inf": [INF, 1.0, INF, 3.0],
    "all inf": [INF] * 4,
    "one -inf": [1.0, -INF, 0.5, 3.0],
    "all but one -inf": [-INF, -INF, 0.5, -INF],
    "all -inf": [-INF] * 4,
    "inf and -inf": [1.0, -INF, INF, 3.0],
    "inf and -inf alone": [INF, -INF, -INF, INF],
    "one nan": [1.0, NAN, 0.5, 3.0],
    "last nan": [1.0, 2.0, 0.5, NAN],
    "two nan": [NAN, 2.0, 0.5, NAN],
    "all nan": [NAN] * 4,
    "nan and inf": [NAN, INF, 0.5, 3.0],
    "inf and nan": [INF, 1.0, NAN, 3.0],
    "nan and -inf": [-INF, 1.0, NAN, -INF],
    "nan among -inf": [-INF, -INF, NAN, -INF],
    "all three": [INF, -INF, NAN, 1.0],
    "far apart": [1000.0, -1000.0, 0.0, 999.0],
    "zeros": [0.0, -0.0, 0.0, -0.0],
}
REDUCTIONS = {
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "logsumexp": lambda x, dim: x.logsumexp(dim),
    "max": lambda x, dim: x.max(dim).values,
    "place of the max": lambda x, dim: x.max(dim).indices,
    "amax": lambda x, dim: x.amax(dim),
    "mean": lambda x, dim: x.mean(dim),
    "sum": lambda x, dim: x.sum(dim),
}
