"""Between recording and scheduling: the same values by fewer launches. A Recording comes in, another one goes out.

Policies, saved policies, `edbatch.record` and `explain` see the rewritten recording and its types.
"""

from __future__ import annotations

from edbatch.recording.results import Results
from edbatch.recording.types.recording import Recording
from edbatch.rewriting.hoist import hoist
from edbatch.switches import ALL_ON, Switches


def rewrite(recording: Recording, results: Results, switches: Switches = ALL_ON) -> tuple[Recording, Results]:
    """A recording of the same results. Hoisting says where it put every node, and the results follow."""
    recording, place = hoist(recording) if switches.hoist else (recording, None)
    return recording, results if place is None else results.renumbered(place)
