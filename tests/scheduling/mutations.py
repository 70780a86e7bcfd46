"""Broken policy files: a saved one, changed by chance in the ways in which files break or are edited wrongly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

ODD = [
    None, True, False, -1, 0, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, "", "a", "z", "sort",
    "\x00", "lowers", [], {}, [[]], [["a", ""]], [["a", ""], ["a", ""]], ["a", "b", "c"], {"a": 1}, list(range(9)),
]  # fmt: skip
PIECES = [b"\xff", b"\xc3\x28", b"\xed\xa0\x80", b"\x00", b"\\ud800", b'"', b"[", b"]", b"{", b"}", b",", b":", b"NaN",
          b"Infinity", b"-", b"1e999", b"9" * 30, b"9" * 5000, b"null", b"\\", b"\n", b"true", b"[" * 3000]  # fmt: skip


def _flipped(rng: random.Random, whole: bytes) -> bytes:
    changed = bytearray(whole)
    for _ in range(rng.choice([1, 1, 2, 5, 40])):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, whole: bytes) -> bytes:
    first, last = sorted(rng.sample(range(len(whole)), 2))
    return rng.choice([whole[:last], whole[first:], whole[:first] + whole[last:], whole + whole[first:]])


def _inserted(rng: random.Random, whole: bytes) -> bytes:
    at = rng.randrange(len(whole) + 1)
    return whole[:at] + rng.choice(PIECES) + whole[at + rng.choice([0, 0, 1, 4]) :]


def _nested(rng: random.Random, whole: bytes) -> bytes:
    deep, at = (
        rng.choice([2, 50, 2000, 200_000]),
        whole.index(rng.choice([b'"types": ', b'"states": ', b'"training": '])),
    )
    opening, closing = rng.choice([(b"[", b"]"), (b'{"a": ', b"}"), (b'{"state": [', b"]}")])
    nested = opening * deep + b"1" + closing * deep
    return rng.choice(
        [nested, whole[:at] + nested + whole[at:], whole[:at] + b'"extra": ' + nested + b", " + whole[at:]]
    )


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield tree, key
        yield from _places(value)


def _retyped(rng: random.Random, whole: bytes) -> bytes:
    tree = json.loads(whole)
    for _ in range(rng.choice([1, 1, 2])):
        holder, key = rng.choice(list(_places(tree)))
        holder[key] = rng.choice(ODD)
    return json.dumps(tree).encode()


def _moved(rng: random.Random, whole: bytes) -> bytes:
    """A key or an item is missing, is there twice, or stands in another's place."""
    tree = json.loads(whole)
    holder, key = rng.choice(list(_places(tree)))
    other, place = rng.choice(list(_places(tree)))
    match rng.randrange(3):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, list):
            holder.append(holder[key])
        case _:
            other[place] = json.loads(json.dumps(holder[key]))
    return json.dumps(tree).encode()


def _twice(rng: random.Random, whole: bytes) -> bytes:
    """A key comes a second time, with another value."""
    key = rng.choice(list(json.loads(whole)))
    return whole.rstrip().removesuffix(b"}") + f', "{key}": {json.dumps(rng.choice(ODD))}}}'.encode()


def _noise(rng: random.Random, whole: bytes) -> bytes:
    return rng.choice(
        [b"", rng.randbytes(rng.randrange(200)), whole.decode().encode("utf-16"), b"\xef\xbb\xbf" + whole]
    )


MUTATIONS: list[Callable[[random.Random, bytes], bytes]] = [
    _flipped, _cut, _inserted, _nested, _retyped, _moved, _twice, _noise,
]  # fmt: skip
