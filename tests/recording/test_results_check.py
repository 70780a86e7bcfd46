"""Results are checked: for everything that they promise there is a fault that is found."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from edbatch.layout.layout import REF
from edbatch.recording.results import Results
from staged import recorded


@pytest.fixture(scope="module")
def both():
    recording, results = recorded()
    assert [group.refs.tolist() for group in results.groups] == [[3, 10], [6, 13], [REF, 7 + REF]]
    return recording, results


def with_group(k, **fields):
    """The results with some fields of a group changed."""

    def change(results):
        groups = list(results.groups)
        groups[k] = replace(groups[k], **fields)
        return {"groups": tuple(groups)}

    return change


FAULTS = {
    "a structure of 4 leaves has 3 leaves": lambda r: {"leaves": r.leaves[:3]},
    "a structure of 4 leaves has 5 names": lambda r: {"names": [*r.names, "another"]},
    r"result\['n'\] has 1 values for 2 examples": lambda r: {"leaves": (*r.leaves[:3], r.leaves[3][:1])},
    r"Group\(leaf 4: .* is of a leaf that is not there": with_group(0, leaf=4),
    r"result\['most'\] is to be gathered for example 2 of 2": with_group(0, examples=(0, 2)),
    r"result\['most'\]: example 0 comes after example 1": with_group(0, examples=(1, 0)),
    r"result\['rows'\]: 2 examples have 1 lengths": with_group(1, lengths=(3,)),
    r"result\['rows'\] of example 1 has 0 rows": with_group(1, lengths=(1, 0)),
    r"result\['most'\] is of several rows, but their numbers are missing": with_group(0, is_ragged=True),
    r"result\['rows'\]: 2 references for 3 values": with_group(1, is_ragged=False),
    r"result\['most'\]: 1 references for 2 values": with_group(0, refs=np.array([3])),
    r"result\['most'\] reads node 14, but there are 14": with_group(0, refs=np.array([3, 14])),
    r"result\['most'\] reads input 2 from outside": with_group(0, refs=np.array([3, -3])),
    r"result\['most'\] reads output 2 of max of": with_group(0, refs=np.array([3, 10 + 2 * REF])),
    r"result\['most'\] reads a value f64\[\] as f64\[3\]": with_group(0, refs=np.array([3, REF])),
    r"result\['most'\] reads rows as one value": with_group(0, refs=np.array([3, 13])),
    r"result\['rows'\]: the rows of examples: number 1 is 3, not 2": with_group(1, lengths=(1, 3)),
    r"result\['most'\] of example 0 is in two groups": lambda r: {"groups": (*r.groups, r.groups[0])},
    r"result\['total'\] of example 0 was recorded, but is in no group": lambda r: {"groups": r.groups[:2]},
}


@pytest.mark.parametrize("match", FAULTS)
def test_the_first_fault_is_named(both, match):
    recording, results = both
    results.check(recording)
    broken = replace(results, **FAULTS[match](results))
    with pytest.raises(AssertionError, match=match):
        broken.check(recording)


def test_results_are_frozen_and_print_shortly(both):
    results = both[1]
    assert str(results) == repr(results) == "Results(4 leaves of 2 examples, 3 groups)"
    assert repr(Results.collect([()])) == "Results(0 leaves of 0 examples, 0 groups)"
    assert list(map(repr, results.groups)) == [
        "Group(leaf 0: f64[3] of 2 examples)",
        "Group(leaf 1: f64[3] of 2 examples, 3 rows)",
        "Group(leaf 2: f64[] of 2 examples)",
    ]
    with pytest.raises(FrozenInstanceError):
        results.groups = ()
    with pytest.raises(FrozenInstanceError):
        results.groups[0].needs_grad = True
