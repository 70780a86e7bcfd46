"""Between recording and scheduling: the same values by fewer launches. A Recording comes in, another one goes out.

Policies, saved policies, `edbatch.record` and `explain` see the rewritten recording and its types.
"""

from __future__ import annotations

from edbatch.recording.results import Results
from edbatch.recording.types.recording import Recording
from edbatch.rewriting.absorb import absorb_sums
from edbatch.rewriting.hoist import hoist


def rewrite(recording: Recording, results: Results) -> tuple[Recording, Results]:
    """A recording of the same results. Each pass says where it put every node, and the results follow."""
    recording, results = absorb_sums(recording, results)
    recording, place = hoist(recording)
    return recording, results if place is None else results.renumbered(place)
