"""The loops of `hoist.py`, compiled by numba; imported at first use only.

In: the flat arrays of a recording (see `layout/layout.py`). Out: which operands are recurrent, and the arrays after
nodes were split in two, the node *ahead* and the *main* one.
"""

import numpy as np

from edbatch.layout.layout_loops import DATA, MASK, entries, renumbered
from edbatch.storage.loops import inner_loop, loop


@loop
def recurrent_slots(types, args, slot_starts, slot_kinds):
    """For every slot, whether it reads from a type that reads from the slot's own type, directly or through others."""
    num_types = len(slot_starts) - 1
    reads = np.zeros((len(slot_kinds), num_types), np.bool_)  # slot, type of a producer
    at = 0
    for n in range(len(types)):
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if slot_kinds[s] != DATA:
                for k in range(first, at):
                    if args[k] >= 0:
                        reads[s, types[args[k] & MASK]] = True
    inputs = np.zeros((num_types, num_types), np.bool_)
    for t in range(num_types):
        for s in range(slot_starts[t], slot_starts[t + 1]):
            for p in range(num_types):
                inputs[t, p] |= reads[s, p]
    component = components(inputs)
    found = np.zeros(len(slot_kinds), np.bool_)
    for t in range(num_types):
        for s in range(slot_starts[t], slot_starts[t + 1]):
            for p in range(num_types):
                found[s] |= reads[s, p] and component[p] == component[t]
    return found


@inner_loop
def components(inputs):
    """The strongly connected component of each vertex, by Kosaraju: `inputs[a, b]` says that a reads from b."""
    n = len(inputs)
    order, num_left = np.empty(n, np.int64), 0  # vertices in the order in which a depth-first walk leaves them
    component = np.full(n, -1, np.int64)
    stack, following = np.empty(n, np.int64), np.zeros(n, np.int64)
    for root in range(n):
        if component[root] != -1:
            continue
        component[root], stack[0], depth = -2, root, 1
        while depth:
            v = stack[depth - 1]
            while following[v] < n and not (inputs[v, following[v]] and component[following[v]] == -1):
                following[v] += 1
            if following[v] == n:
                order[num_left], num_left, depth = v, num_left + 1, depth - 1
            else:
                w = following[v]
                component[w], stack[depth], depth = -2, w, depth + 1
    for k in range(n - 1, -1, -1):  # backwards along inputs, from the vertices left last
        root = order[k]
        if component[root] != -2:
            continue
        component[root], stack[0], depth = root, root, 1
        while depth:
            depth -= 1
            v = stack[depth]
            for w in range(n):
                if inputs[w, v] and component[w] == -2:
                    component[w], stack[depth], depth = root, w, depth + 1
    return component


@loop
def split_nodes(types, args, slot_starts, slot_kinds, ahead_types, main_types, in_ahead, in_main, num_results):
    """Splits nodes whose type has an ahead type in two: the node ahead, unless an equal one exists, and the main node.

    All types and references are renumbered.

    Args:
        ahead_types, main_types: for every type the two that take its place; the first is -1 if it is not split.
        in_ahead, in_main: for every slot, which of the two reads it.
        num_results: how many results of the node ahead the main node reads, after its own slots.

    Returns:
        The types and args of all nodes, and for every old node the new one that has its results.
    """
    num_split, num_args = 0, 2 * len(args)
    for n in range(len(types)):
        if ahead_types[types[n]] >= 0:
            num_split += 1
            num_args += num_results[types[n]]
    room = 4
    while room < 2 * num_split:
        room *= 2
    known = np.full((room, 2), -1, np.int64)  # a hash table of nodes ahead: the node and where its args begin
    split_types, split_args = np.empty(len(types) + num_split, np.int64), np.empty(num_args, np.int64)
    node_of = np.empty(len(types), np.int64)
    at, node, out = 0, 0, 0
    for n in range(len(types)):
        t = types[n]
        is_split = ahead_types[t] >= 0
        before, begin, ahead = at, out, -1
        for part in range(0 if is_split else 1, 2):
            at = before
            for s in range(slot_starts[t], slot_starts[t + 1]):
                begins = at
                first, at = entries(slot_kinds[s], args, begins)
                if in_ahead[s] if part == 0 else in_main[s]:
                    for k in range(begins, at):
                        is_number = k < first or slot_kinds[s] == DATA
                        split_args[out] = args[k] if is_number else renumbered(args[k], node_of)
                        out += 1
            if part == 0:
                place = find(known, split_types, split_args, ahead_types[t], begin, out)
                ahead = known[place, 0]
                if ahead >= 0:
                    out = begin
                    continue
                ahead = node
                known[place, 0], known[place, 1] = node, begin
            elif is_split:
                for k in range(num_results[t]):
                    split_args[out], out = ahead + (k << 32), out + 1
            split_types[node] = ahead_types[t] if part == 0 else main_types[t]
            node_of[n] = node
            node += 1
    return split_types[:node], split_args[:out], node_of


@inner_loop
def find(known, types, args, wanted, begin, end):
    """Where in the hash table `known` a node is: of type `wanted`, with the args from `begin` to `end`.

    The place is empty if there is no such node.
    """
    code = wanted
    for k in range(begin, end):
        code = (code * 1000003) ^ args[k] ^ (args[k] >> 32)
    place = (code ^ (code >> 29)) & (len(known) - 1)
    while known[place, 0] >= 0:
        if types[known[place, 0]] == wanted:
            is_same, other = True, known[place, 1]
            for k in range(end - begin):
                is_same &= args[other + k] == args[begin + k]  # no length is compared: lists begin with theirs
            if is_same:
                break
        place = (place + 1) & (len(known) - 1)
    return place
