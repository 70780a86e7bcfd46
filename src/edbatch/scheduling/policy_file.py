"""Saves learned policies as JSON files that people can read, and loads them.

In: an `Fsm` (the finite state machine that was learned), or a path. Out: the file, or the `Fsm`. A file is checked
completely when it is read, so that a damaged one is refused there and not in some later call.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from edbatch.errors import PolicyError
from edbatch.scheduling.fsm import ENCODINGS, MARK_NAMES, MARKS, Fsm
from edbatch.scheduling.learning_record import Training
from edbatch.storage.atomic import write_atomically

FORMAT = "edbatch policy"
VERSION = 1

TypeName = str | int
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class StateRecord(msgspec.Struct, forbid_unknown_fields=True):
    state: list[tuple[TypeName, str]]  # ready types with their marks
    launch: TypeName
    visits: Count


class FileRecord(msgspec.Struct, forbid_unknown_fields=True):
    format: str
    version: int
    encoding: str
    crowd: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)]
    types: list[TypeName]
    states: list[StateRecord]
    training: Training


class PolicyHeader(msgspec.Struct):
    format: str
    version: Annotated[int, msgspec.Meta(ge=1)]


def save(policy: Fsm, path: Path) -> None:
    """Write the whole file or, if anything fails, nothing."""
    odd = [name for name in policy.types if type(name) not in (str, int)]
    if odd:
        raise PolicyError(
            f"a policy is saved with types that are strings or ints, and {odd[0]!r} is neither; rename it"
        )
    states: list[Any] = [StateRecord(list(s.ready), s.launch, s.visits) for s in policy.states()]  # type: ignore[arg-type]
    types: list[Any] = list(policy.types)
    record = FileRecord(FORMAT, VERSION, policy.encoding, policy.crowd, types, states, policy.training)
    try:
        content = _lines(msgspec.to_builtins(record))
    except (UnicodeEncodeError, OverflowError) as error:
        raise PolicyError(f"a type has a name that JSON does not know ({error}); rename it") from None
    write_atomically(path, content)


def load_policy(path: str | Path) -> Fsm:
    """Read a policy that was saved by `policy.save`.

    Raises:
        PolicyError: the file is damaged, of a newer version, or no policy.
        OSError: the file cannot be read.
    """
    path = Path(path)
    text = path.read_bytes()
    try:
        header = msgspec.json.decode(text, type=PolicyHeader)
        if header.format != FORMAT:
            raise PolicyError(f"{path} says that its format is {header.format!r}, not {FORMAT!r}; give a saved policy")
        if header.version > VERSION:
            raise PolicyError(
                f"{path} is a policy of version {header.version}, and this edbatch reads versions up to {VERSION}; "
                "upgrade edbatch, or learn the policy again"
            )
        record = msgspec.json.decode(text, type=FileRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # the last: lists in lists in lists …
        raise PolicyError(f"{path} is damaged or no policy ({error}); learn the policy again and save it") from error
    try:
        return _machine(record)
    except PolicyError as error:
        raise PolicyError(f"{path} is damaged: {error}; learn the policy again and save it") from None


def _machine(record: FileRecord) -> Fsm:
    if record.encoding not in ENCODINGS:
        raise PolicyError(f"its encoding {record.encoding!r} is none of {', '.join(ENCODINGS)}")
    id_of = {name: i for i, name in enumerate(record.types)}
    if len(id_of) < len(record.types):
        raise PolicyError("a type is listed twice")
    marks = MARK_NAMES[record.encoding]
    symbols: list[int] = []
    starts = [0]
    seen = set()
    for number, state in enumerate(record.states):
        for name, mark in state.state:
            if name not in id_of or mark not in marks:
                raise PolicyError(f"state {number} has the type {name!r} marked {mark!r}, which does not exist")
            symbols.append(MARKS * id_of[name] + marks.index(mark))
        ready = [name for name, _ in state.state]
        if len(set(ready)) < len(ready):
            raise PolicyError(f"state {number} has a type twice")
        if state.launch not in ready:
            raise PolicyError(f"state {number} launches {state.launch!r}, which is not ready in it")
        if tuple(symbols[starts[-1] :]) in seen:
            raise PolicyError(f"state {number} is there twice")
        seen.add(tuple(symbols[starts[-1] :]))
        starts.append(len(symbols))
    return Fsm(
        types=tuple(record.types),
        encoding=record.encoding,
        symbols=np.array(symbols, np.int32),
        starts=np.array(starts, np.int64),
        actions=np.array([id_of[state.launch] for state in record.states], np.int64),
        visits=np.array([state.visits for state in record.states], np.int64),
        crowd=record.crowd,
        training=record.training,
    )


def _lines(record: dict[str, Any]) -> bytes:
    """JSON with one line per type and state."""
    parts = []
    for key, value in record.items():
        text = msgspec.json.encode(value)
        if isinstance(value, list):
            text = b"[" + b",".join(b"\n    " + msgspec.json.encode(item) for item in value) + b"\n  ]"
        parts.append(b'\n  "' + key.encode() + b'": ' + text)
    return b"{" + b",".join(parts) + b"\n}\n"
