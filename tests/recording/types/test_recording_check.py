"""A recording is checked: for everything that it promises there is a fault that is found."""

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch

from edbatch.layout.layout import REF, Slot
from edbatch.recording.types.recording import Recording
from edbatch.spec import Spec
from staged import recorded

PAIR, TOTAL, WEIGH, MOST, STACK, TANH, PLUS = range(7)  # types, and nodes of the first example


@pytest.fixture(scope="module")
def recording():
    found = recorded()[0]
    assert found.types.tolist() == [*range(7)] * 2
    first, second = [-1, 1, 2, 0, -1, 1, 1, 0, 1, 0, 4, 4, 5], [-2, 2, 2, 7, -2, 8, 2, 7, 9, 2, 7, 9, 11, 11, 12]
    assert found.args.tolist() == first + second
    return found


def with_item(name, at, value):
    def change(recording):
        array = getattr(recording, name).copy()
        array[at] = value
        return {name: array}

    return change


def with_type(t, **fields):
    def change(recording):
        types = list(recording.node_types)
        types[t] = replace(types[t], **fields)
        return {"node_types": tuple(types)}

    return change


def with_spec(t, slot, spec):
    def change(recording):
        specs = list(recording.node_types[t].slot_specs)
        specs[slot] = spec
        return with_type(t, slot_specs=tuple(specs))(recording)

    return change


NUMBERS = Spec((2,), torch.int64, torch.device("cpu"))
FAULTS = {
    "node 3 has type 7, but there are 7 types": with_item("types", 3, 7),
    "node 3 has type -1": with_item("types", 3, -1),
    "weigh.* has 1 slots, but 0 specs": with_type(WEIGH, slot_specs=()),
    "pair.* has 2 outputs, but 1 in per_row": with_type(PAIR, per_row=(False,)),
    "reads ONE with the spec None": with_spec(WEIGH, 0, None),
    "reads numbers with the spec i64.2.": with_spec(PAIR, 1, NUMBERS),
    "shared tensors of weigh.* are not those of its kernel": with_type(WEIGH, shared=()),
    "two types have one name: tanh": lambda r: {
        "node_types": tuple(replace(t, name="tanh") if i in (TANH, PLUS) else t for i, t in enumerate(r.node_types))
    },
    "the first example begins with node 1": with_item("starts", 0, 1),
    "example 1 begins with node 15, the next with 14": with_item("starts", 1, 15),
    "2 inputs from outside have 1 specs": lambda r: {"outside_specs": r.outside_specs[:1]},
    "input 1 from outside is f64.3., but was noted as i64.2.": lambda r: {
        "outside_specs": (r.outside_specs[0], NUMBERS)
    },
    "node 1 lists 0 values": with_item("args", 2, 0),
    "the args of node 13 end at 28, but there are 27": lambda r: {"args": r.args[:-1]},
    "the args of all nodes end at 28, but there are 29": lambda r: {"args": np.append(r.args, 0)},
    "node 2 reads node 2, which is no earlier one": with_item("args", 5, WEIGH),
    "node 2 reads input 2 from outside, but there are 2": with_item("args", 5, -3),
    "node 2 reads output 1 of sum of.*, which has 1": with_item("args", 5, TOTAL + REF),
    r"node 2 reads a value f64\[\] as f64\[3\]": with_item("args", 5, PAIR + REF),
    "node 5 reads one value as rows": with_item("args", 10, WEIGH),
    "node 6 reads rows as one value": with_type(PLUS, slots=(Slot.ROWS, Slot.ONE)),
    "node 13 reads 2 rows through slot 9, but 1 before": with_item("args", 26, STACK),
}


@pytest.mark.parametrize("match", FAULTS)
def test_the_first_fault_is_named(recording, match):
    recording.check()
    broken = replace(recording, **FAULTS[match](recording))
    with pytest.raises(AssertionError, match=match):
        broken.check()


TABLES = {
    "the set of types is of other types": lambda types: {"names": types.names[::-1]},
    "starts of slots: number 1 is 9, not 2": lambda types: {"table": changed(types.table, "starts", 1, 9)},
    "kinds of slots: number 0 is 3, not 0": lambda types: {"table": changed(types.table, "kinds", 0, Slot.LIST)},
    "starts of outputs: number 1 is 1, not 2": lambda types: {"table": changed(types.table, "output_starts", 1, 1)},
    "per_row: number 0 is 1, not False": lambda types: {"table": changed(types.table, "output_per_row", 0, 1)},
    r"output 1 is f64\[\], but its arena is of f64\[3\]": lambda types: {
        "table": changed(types.table, "output_arenas", 1, 0)
    },
}


def changed(table, name, at, value):
    array = getattr(table, name).copy()
    array[at] = value
    return replace(table, **{name: array})


@pytest.mark.parametrize("match", TABLES)
def test_what_is_known_of_the_types_is_checked(recording, match):
    broken = replace(recording)
    vars(broken)["type_set"] = replace(recording.type_set, **TABLES[match](recording.type_set))
    with pytest.raises(AssertionError, match=match):
        broken.check()


@pytest.mark.parametrize(
    ("rows", "match"),
    [
        (([2, 0, 0], [0, 0]), "input 1 from outside has row 0, but is number 1 of f64"),
        (([3, 0, 0], [0, 1]), "outside rows, by arena: number 0 is 3, not 2"),
    ],
)
def test_the_rows_of_inputs_are_checked(recording, rows, match):
    broken = replace(recording)
    vars(broken)["outside_rows"] = tuple(np.array(r) for r in rows)
    with pytest.raises(AssertionError, match=match):
        broken.check()


def test_recordings_are_frozen_and_print_shortly(recording):
    assert str(recording) == repr(recording) == "Recording(14 nodes, 7 types, 2 inputs)"
    with pytest.raises(FrozenInstanceError):
        recording.args = recording.types


def test_a_recording_of_nothing():
    none = np.zeros(0, np.int64)
    Recording(none, none, (), (), (), none).check()
