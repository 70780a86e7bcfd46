"""Checks of what every stage of a batched call hands to the next one; `conftest.py` puts them around all calls."""

from edbatch.rewriting.rewrite import rewrite

MOST_NODES = 20_000  # of a mini-batch that is checked: the checks are slow


def contents(recording, results):
    """What a later stage could have changed."""
    arrays = recording.types, recording.args, recording.starts, *[group.refs for group in results.groups]
    return [array.tolist() for array in arrays]


def checked_rewrite(recording, results, *switches):
    if len(recording.types) > MOST_NODES:
        return rewrite(recording, results, *switches)
    recording.check()
    results.check(recording)
    before = contents(recording, results)
    found = rewrite(recording, results, *switches)
    assert contents(recording, results) == before, "a stage changed what it was given"
    found[1].check(found[0])
    return found


def checking_prepare(prepare):
    def checked(self, *args):
        execution, results = prepare(self, *args)
        plan, needs = execution.plan, execution.needs
        if plan.graph.num_nodes <= MOST_NODES:
            plan.check()
            results.check(plan.recording)
            if needs is not None:
                needs.check(plan.recording, results)
            execution.compiled.check(plan, needs)
        return execution, results

    return checked
