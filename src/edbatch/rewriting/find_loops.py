"""The loops of `find_cells.py`, compiled by numba; imported at first use only.

In: the flat arrays of a recording (see `layout/layout.py`) and spans of its nodes. Out: which spans are alike, and the
arrays after each of some spans has become one node. *Inner* references lead to nodes of the same span, *outer* ones to
anything else.
"""

import numpy as np

from edbatch.layout.layout_loops import DATA, MASK, ONE, SUM, entries
from edbatch.storage.loops import inner_loop, loop

MOST_OUTER = 64  # different values from outside that a found cell may read


@loop
def arg_starts(types, args, slot_starts, slot_kinds):
    """Where the args of every node begin."""
    begin = np.empty(len(types) + 1, np.int64)
    at = 0
    for n in range(len(types)):
        begin[n] = at
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            _, at = entries(slot_kinds[s], args, at)
    begin[len(types)] = at
    return begin


@loop
def find_recursive(spans, num_codes):
    """Which functions call themselves, and how many calls each has. Spans are in the order in which calls end."""
    is_recursive, is_open = np.zeros(num_codes, np.bool_), np.zeros(num_codes, np.int64)
    stack, depth = np.empty(len(spans), np.int64), 0
    for k in range(len(spans) - 1, -1, -1):
        while depth and spans[k, 1] <= spans[stack[depth - 1], 0]:
            depth -= 1
            is_open[spans[stack[depth], 2]] -= 1
        code = spans[k, 2]
        is_recursive[code] |= is_open[code] > 0
        stack[depth], depth = k, depth + 1
        is_open[code] += 1
    return is_recursive


@inner_loop
def mixed(code, number):
    code = (code ^ np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
    return code ^ (code >> np.uint64(29))


@loop
def hash_spans(spans, types, args, begins, slot_starts, slot_kinds, can_merge, likeness, most_nodes):
    """For each span a number that equal spans share, and one that spans share which differ in shared tensors alone; 0
    for spans that cannot become one node."""
    exact, alike = np.zeros(len(spans), np.uint64), np.zeros(len(spans), np.uint64)
    outer = np.empty(MOST_OUTER, np.int64)
    for k in range(len(spans)):
        begin, end = spans[k, 0], spans[k, 1]
        if end - begin > most_nodes or end - begin < 2:
            continue
        wiring, num_outer = np.uint64(end - begin), 0
        by_type, by_likeness, is_fit = np.uint64(1), np.uint64(1), True
        for n in range(begin, end):
            t = types[n]
            if not can_merge[t]:
                is_fit = False
                break
            by_type, by_likeness = mixed(by_type, t), mixed(by_likeness, likeness[t])
            at = begins[n]
            for s in range(slot_starts[t], slot_starts[t + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] == DATA:
                    continue
                has_inner = slot_kinds[s] == ONE
                wiring = mixed(wiring, at - first)
                for e in range(first, at):
                    if args[e] >= 0 and (args[e] & MASK) >= begin:
                        has_inner = True
                        wiring = mixed(wiring, 1 + args[e] - begin)
                        continue
                    number = 0
                    while number < num_outer and outer[number] != args[e]:
                        number += 1
                    if number == num_outer:
                        if num_outer == MOST_OUTER:
                            is_fit = False
                            break
                        outer[num_outer], num_outer = args[e], num_outer + 1
                    wiring = mixed(wiring, -1 - number)
                is_fit &= has_inner  # a sum of values from outside has any number of them
            if not is_fit:
                break
        if is_fit:
            exact[k], alike[k] = mixed(wiring, by_type) | np.uint64(1), mixed(wiring, by_likeness) | np.uint64(1)
    return exact, alike


@loop
def are_equal(spans, model, types, args, begins, slot_starts, slot_kinds):
    """For each span whether it really equals the one of number `model[k]`, reference by reference."""
    found = np.ones(len(spans), np.bool_)
    outer, other = np.empty(MOST_OUTER, np.int64), np.empty(MOST_OUTER, np.int64)
    for k in range(len(spans)):
        a, b, length, num_outer = spans[k, 0], spans[model[k], 0], spans[k, 1] - spans[k, 0], 0
        if spans[model[k], 1] - b != length:
            found[k] = False
            continue
        for i in range(length):
            t = types[a + i]
            if types[b + i] != t or begins[b + i + 1] - begins[b + i] != begins[a + i + 1] - begins[a + i]:
                found[k] = False
                break
            at = begins[a + i]
            shift = begins[b + i] - at
            for s in range(slot_starts[t], slot_starts[t + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] == DATA:
                    continue
                for e in range(first, at):
                    x, y = args[e], args[e + shift]
                    is_inner = x >= 0 and (x & MASK) >= a
                    if is_inner != (y >= 0 and (y & MASK) >= b) or (is_inner and x - a != y - b):
                        found[k] = False
                    if is_inner:
                        continue
                    number = 0
                    while number < num_outer and outer[number] != x:
                        number += 1
                    if number == num_outer:
                        for earlier in range(num_outer):
                            if other[earlier] == y:
                                found[k] = False
                        outer[num_outer], other[num_outer], num_outer = x, y, num_outer + 1
                    elif other[number] != y:
                        found[k] = False
    return found


@loop
def choose(spans, kind):
    """The spans to merge, in the order of their nodes: the largest ones whose kind is not negative."""
    chosen, count, limit = np.empty(len(spans), np.int64), 0, np.int64(1) << 60
    for k in range(len(spans) - 1, -1, -1):  # a function comes before those that it calls
        if spans[k, 1] <= limit and kind[k] >= 0:
            chosen[count], count, limit = k, count + 1, spans[k, 0]
    return chosen[:count][::-1].copy()


@loop
def leftover_runs(spans, chosen, types, args, begins, slot_starts, slot_kinds, can_merge):
    """Runs of nodes outside of the chosen spans that a function has recorded between its calls of other functions."""
    is_border, is_taken = np.zeros(len(types) + 1, np.bool_), np.zeros(len(types) + 1, np.bool_)
    for k in range(len(spans)):
        is_border[spans[k, 0]] = is_border[spans[k, 1]] = True
    for k in chosen:
        is_taken[spans[k, 0] : spans[k, 1]] = True
    runs, count, begin = np.empty((len(types), 3), np.int64), 0, -1
    for n in range(len(types) + 1):
        joins = n < len(types) and not is_taken[n] and can_merge[types[n]] and not is_border[n]
        if joins and begin >= 0:
            at = begins[n]
            for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] == SUM:
                    has_inner = False
                    for e in range(first, at):
                        has_inner |= args[e] >= 0 and (args[e] & MASK) >= begin
                    joins &= has_inner
        if not joins:
            if begin >= 0 and n - begin > 1:
                runs[count, 0], runs[count, 1], runs[count, 2], count = begin, n, -1, count + 1
            begin = -1
            can_begin = n < len(types) and not is_taken[n] and can_merge[types[n]]
            if can_begin:
                for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
                    can_begin &= slot_kinds[s] != SUM
            if can_begin:
                begin = n
    return runs[:count]


@loop
def used_outside(
    spans, kind, num_values, value_begin, types, args, begins, slot_starts, slot_kinds, output_starts, refs
):
    """Of the values that the nodes of a kind of span compute, those that are read outside of their span or are results.

    Args:
        num_values: of each kind. value_begin: where the values of a kind begin among those of all kinds.

    Returns:
        A flag for each value of each kind, and for each node the number of its span, or -1.
    """
    span_of = np.full(len(types), -1, np.int64)
    value_of = np.zeros(len(types), np.int64)  # the number of a node's first value in its kind
    for k in range(len(spans)):
        number = value_begin[kind[k]]
        for n in range(spans[k, 0], spans[k, 1]):
            span_of[n], value_of[n] = k, number
            number += output_starts[types[n] + 1] - output_starts[types[n]]
    is_used = np.zeros(num_values, np.bool_)
    for n in range(len(types)):
        at = begins[n]
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if slot_kinds[s] == DATA:
                continue
            for e in range(first, at):
                producer = args[e] & MASK
                if args[e] >= 0 and span_of[producer] >= 0 and span_of[producer] != span_of[n]:
                    is_used[value_of[producer] + (args[e] >> 32)] = True
    for e in range(len(refs)):
        if refs[e] >= 0 and span_of[refs[e] & MASK] >= 0:
            is_used[value_of[refs[e] & MASK] + (refs[e] >> 32)] = True
    return is_used, span_of, value_of


@loop
def merge_nodes(
    spans, kind, found_types, type_of, output_of, span_of, value_of, types, args, begins, slot_starts, slot_kinds
):
    """Each span becomes one node; all types and references are renumbered.

    Args:
        found_types: the type of each kind of span. type_of: the new number of each type.
        output_of: for each value of each kind its number among the outputs of the new node.

    Returns:
        The types and args of all nodes, and for every old node the new one, at its place or after it.
    """
    new_types, new_args, node_of = (
        np.empty(len(types), np.int64),
        np.empty(len(args), np.int64),
        np.empty(len(types), np.int64),
    )
    outer = np.empty(MOST_OUTER, np.int64)
    node, out, n = 0, 0, 0
    while n < len(types):
        k = span_of[n]
        begin, end = (n, n + 1) if k < 0 else (spans[k, 0], spans[k, 1])
        num_outer = 0
        for m in range(begin, end):
            node_of[m] = node
            at = begins[m]
            for s in range(slot_starts[types[m]], slot_starts[types[m] + 1]):
                before = at
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] == DATA or k < 0:
                    for e in range(before, first):
                        new_args[out], out = args[e], out + 1
                for e in range(first, at):
                    if slot_kinds[s] == DATA:
                        new_args[out], out = args[e], out + 1
                        continue
                    if k >= 0:
                        if args[e] >= 0 and (args[e] & MASK) >= begin:
                            continue
                        number = 0
                        while number < num_outer and outer[number] != args[e]:
                            number += 1
                        if number < num_outer:
                            continue
                        outer[num_outer], num_outer = args[e], num_outer + 1
                    new_args[out], out = moved(args[e], span_of, value_of, output_of, node_of), out + 1
        new_types[node] = type_of[types[n]] if k < 0 else found_types[kind[k]]
        node += 1
        n = end
    return new_types[:node], new_args[:out], node_of


@inner_loop
def moved(ref, span_of, value_of, output_of, node_of):
    """A reference after nodes were merged."""
    if ref < 0:
        return ref
    node, number = ref & MASK, ref >> 32
    if span_of[node] >= 0:
        number = output_of[value_of[node] + number]
    return node_of[node] + (number << 32)


@loop
def move_refs(refs, span_of, value_of, output_of, node_of):
    """References after nodes were merged."""
    found = np.empty(len(refs), np.int64)
    for e in range(len(refs)):
        found[e] = moved(refs[e], span_of, value_of, output_of, node_of)
    return found
