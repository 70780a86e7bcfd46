"""Between recording and scheduling: the same values by fewer launches. A Recording comes in, another one goes out.

Policies, saved policies, `edbatch.record` and `explain` see the rewritten recording and its types.
"""

from __future__ import annotations

import numpy as np

from edbatch.frontend.absorb import absorb_sums
from edbatch.frontend.hoisting import hoist
from edbatch.frontend.recording import Recording
from edbatch.frontend.results import Results
from edbatch.planning.layout import Ints, unpack


def rewrite(recording: Recording, results: Results) -> tuple[Recording, Results]:
    """A recording of the same results. Each pass says where it put every node, and the results follow."""
    recording, place = absorb_sums(recording, _result_nodes(results))
    if place is not None:
        results = results.renumbered(place)
    recording, place = hoist(recording)
    if place is not None:
        results = results.renumbered(place)
    return recording, results


def _result_nodes(results: Results) -> Ints:
    """The nodes that results refer to."""
    refs = np.concatenate([np.empty(0, np.int64), *[group.refs for group in results.groups]])
    return unpack(refs[refs >= 0])[0]
