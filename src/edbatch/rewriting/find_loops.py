"""The loops of `find_cells.py`, compiled by numba; imported at first use only.

In: the flat arrays of a recording (see `layout/layout.py`), spans of its nodes, and groups of nodes. Out: which groups
are equal, and the arrays after each of some groups has become one node. A *group* is a list of nodes (its *members*) in
an array `members` of all groups, from `starts[g]` to `starts[g + 1]`. *Inner* references lead to members of the same
group, *outer* ones to anything else.
"""

import numpy as np

from edbatch.layout.layout_loops import DATA, MASK, entries
from edbatch.storage.loops import inner_loop, loop

MOST_HOMES = 8  # calls that begin one inside the other, and share a sum that was recorded later
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


@inner_loop
def mixed(code, number):
    code = (code ^ np.uint64(number)) * np.uint64(0x9E3779B97F4A7C15)
    return code ^ (code >> np.uint64(29))


@loop
def forms(spans, num_codes, types, sites, is_sum, can_merge, most_nodes):
    """What each call did: a number for the instructions that recorded its nodes, 0 if these cannot be one node.

    Sums do not count, because a sum is recorded where it is read first.

    Returns:
        The numbers; and for each function how often a call of it recorded nodes of one type by one instruction of its
        own, at most, and whether it calls itself.
    """
    found, repeats = np.zeros(len(spans), np.uint64), np.zeros(num_codes, np.int64)
    is_recursive, is_open = np.zeros(num_codes, np.bool_), np.zeros(num_codes, np.int64)
    stack, depth = np.empty(len(spans), np.int64), 0
    for k in range(len(spans) - 1, -1, -1):  # a function comes before those that it calls
        begin, end, code = spans[k]
        while depth and end <= spans[stack[depth - 1], 0]:
            depth -= 1
            is_open[spans[stack[depth], 2]] -= 1
        is_recursive[code] |= is_open[code] > 0
        stack[depth], depth = k, depth + 1
        is_open[code] += 1
        if end - begin > most_nodes:
            continue
        form, is_fit = np.uint64(1), True
        for n in range(begin, end):
            if is_sum[types[n]]:
                continue
            is_fit &= can_merge[types[n]] and sites[n] >= 0
            form = mixed(form, sites[n])
            if sites[n] >> 32 == code:
                count = 0
                for m in range(begin, n + 1):
                    count += sites[m] == sites[n] and types[m] == types[n]
                repeats[code] = max(repeats[code], count)
        if is_fit:
            found[k] = form | np.uint64(1)
    return found, repeats, is_recursive


@loop
def homes(spans, is_cell, sums, types, args, begins):
    """For each sum the smallest call of a cell that computed all its terms and ended before it was recorded, or -1."""
    home = np.full(len(sums), -1, np.int64)
    of_node = np.full(len(types), -1, np.int64)  # the smallest call that recorded a node
    caller, stack, depth = np.full(len(spans), -1, np.int64), np.empty(len(spans), np.int64), 0
    for k in range(len(spans) - 1, -1, -1):
        while depth and spans[k, 1] <= spans[stack[depth - 1], 0]:
            depth -= 1
        if depth:
            caller[k] = stack[depth - 1]
        stack[depth], depth = k, depth + 1
        of_node[spans[k, 0] : spans[k, 1]] = k
    for i in range(len(sums)):
        n = sums[i]
        first, last = n, np.int64(-1)
        for e in range(begins[n] + 1, begins[n + 1]):
            node = args[e] & MASK if args[e] >= 0 else np.int64(-1)
            first, last = min(first, node), max(last, node)
        call = of_node[last] if first >= 0 else np.int64(-1)
        while call >= 0 and (spans[call, 0] > first or not is_cell[call]):
            call = caller[call]
        if call >= 0 and spans[call, 1] <= n:
            home[i] = call
    return home


@loop
def members_of_spans(spans, candidates, types, args, begins, is_sum, sums, home, is_loose):
    """The members of calls: what they recorded, and sums of values that they computed, which are recorded later.

    A sum that reads only values from outside is no member if it has a home elsewhere, or any number of terms.
    """
    starts = np.zeros(len(candidates) + 1, np.int64)
    size = len(sums) * MOST_HOMES
    for k in candidates:
        size += spans[k, 1] - spans[k, 0]
    members, count = np.empty(size, np.int64), 0
    order = np.argsort(home, kind="mergesort")
    in_order = home[order]
    home_of, loose = np.full(len(types), -1, np.int64), np.zeros(len(types), np.bool_)
    for i in range(len(sums)):
        home_of[sums[i]], loose[sums[i]] = home[i], is_loose[i]
    for c in range(len(candidates)):
        k = candidates[c]
        begin, end = spans[k, 0], spans[k, 1]
        first, has_more = count, False
        for n in range(begin, end):
            if is_sum[types[n]] and (loose[n] or home_of[n] >= 0):
                has_inner = False
                for e in range(begins[n] + 1, begins[n + 1]):
                    has_inner |= args[e] >= 0 and (args[e] & MASK) >= begin
                if not has_inner:
                    continue
            members[count], count = n, count + 1
        inside = k
        while inside > 0 and spans[inside - 1, 0] >= begin:
            inside -= 1
        for i in range(np.searchsorted(in_order, inside), np.searchsorted(in_order, k + 1)):
            if sums[order[i]] >= end and count < len(members):
                members[count], count = sums[order[i]], count + 1
                has_more = True
        if has_more:
            members[first:count].sort()
        starts[c + 1] = count
    return members[:count], starts


@inner_loop
def local(place, stamp, ref, group):
    """The number of a reference's node among the members of a group; -1 if it is none of them."""
    if ref < 0 or stamp[ref & MASK] != group:
        return np.int64(-1)
    return place[ref & MASK]


@loop
def hash_groups(members, starts, types, args, begins, slot_starts, slot_kinds):
    """For each group a number that equal groups share; 0 if it reads too much."""
    found = np.zeros(len(starts) - 1, np.uint64)
    place, stamp = np.empty(len(types), np.int64), np.full(len(types), -1, np.int64)
    outer = np.empty(MOST_OUTER, np.int64)
    for g in range(len(starts) - 1):
        code, num_outer, is_fit = np.uint64(starts[g + 1] - starts[g]), 0, True
        for m in range(starts[g], starts[g + 1]):
            n = members[m]
            place[n], stamp[n] = m - starts[g], g
            code = mixed(code, types[n])
            at = begins[n]
            for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] == DATA:
                    continue
                code = mixed(code, at - first)
                for e in range(first, at):
                    inner = local(place, stamp, args[e], g)
                    if inner >= 0:
                        code = mixed(code, 1 + inner + (args[e] >> 32 << 32))
                        continue
                    number = 0
                    while number < num_outer and outer[number] != args[e]:
                        number += 1
                    if number == num_outer:
                        if num_outer == MOST_OUTER:
                            is_fit = False
                            break
                        outer[num_outer], num_outer = args[e], num_outer + 1
                    code = mixed(code, -1 - number)
                if not is_fit:
                    break
            if not is_fit:
                break
        if is_fit and starts[g + 1] - starts[g] > 1:
            found[g] = code | np.uint64(1)
    return found


@loop
def are_equal(members, starts, model, types, args, begins, slot_starts, slot_kinds):
    """For each group whether it really equals group number `model[g]`, reference by reference."""
    found = np.ones(len(starts) - 1, np.bool_)
    place, stamp = np.empty(len(types), np.int64), np.full(len(types), -1, np.int64)
    model_place, model_stamp = np.empty(len(types), np.int64), np.full(len(types), -1, np.int64)
    outer, other = np.empty(MOST_OUTER, np.int64), np.empty(MOST_OUTER, np.int64)
    for g in range(len(starts) - 1):
        b, length, num_outer = model[g], starts[g + 1] - starts[g], 0
        if g == b:
            continue
        if starts[b + 1] - starts[b] != length:
            found[g] = False
            continue
        for i in range(length):
            n, m = members[starts[g] + i], members[starts[b] + i]
            place[n], stamp[n], model_place[m], model_stamp[m] = i, g, i, g
            if types[m] != types[n] or begins[m + 1] - begins[m] != begins[n + 1] - begins[n]:
                found[g] = False
                break
            at, shift = begins[n], begins[m] - begins[n]
            for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] == DATA:
                    continue
                for e in range(first, at):
                    x, y = args[e], args[e + shift]
                    inner = local(place, stamp, x, g)
                    if inner != local(model_place, model_stamp, y, g) or (inner >= 0 and x >> 32 != y >> 32):
                        found[g] = False
                    if inner >= 0 or not found[g]:
                        continue
                    number = 0
                    while number < num_outer and outer[number] != x and other[number] != y:
                        number += 1
                    if number == num_outer and num_outer < MOST_OUTER:
                        outer[num_outer], other[num_outer], num_outer = x, y, num_outer + 1
                    elif number == num_outer or outer[number] != x or other[number] != y:
                        found[g] = False
            if not found[g]:
                break
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
def numbered(keys, others, is_taken):
    """For each pair of a key and another one a number, -1 if it is not taken; and the first place of each number."""
    found, first = np.full(len(keys), -1, np.int64), np.empty(len(keys), np.int64)
    table = np.full(64, -1, np.int64)
    count = 0
    for n in range(len(keys)):
        if not is_taken[n]:
            continue
        if 2 * count >= len(table):
            table = np.full(4 * len(table), -1, np.int64)
            for c in range(count):
                table[_place(table, keys, others, first, first[c])] = c
        at = _place(table, keys, others, first, n)
        if table[at] < 0:
            table[at] = count
            first[count], count = n, count + 1
        found[n] = table[at]
    return found, first[:count]


@inner_loop
def _place(table, keys, others, first, n):
    """Where the number of a pair is in a table, or is to be."""
    at = np.int64(mixed(mixed(np.uint64(1), keys[n]), others[n]) & np.uint64(len(table) - 1))
    while table[at] >= 0 and (keys[first[table[at]]] != keys[n] or others[first[table[at]]] != others[n]):
        at = (at + 1) & (len(table) - 1)
    return at


@loop
def refuse(colour, is_root, example, refs, types, args, begins, slot_starts, slot_kinds):
    """Note in `is_root` the colours whose values are not always read in the same way: by nodes of the same colours in
    the same places, one for each of its nodes, and nowhere else.

    Args:
        colour: of each node, -1 if it can be in no group. example: of each node. refs: the values that are results.
    """
    count = np.zeros(len(is_root), np.int64)
    for n in range(len(types)):
        if colour[n] >= 0:
            count[colour[n]] += 1
    readers = np.zeros(len(types), np.uint64)  # of each node: a number for all that read it and where
    for ref in refs:
        if ref >= 0 and colour[ref & MASK] >= 0:
            is_root[colour[ref & MASK]] = True
    for n in range(len(types)):
        at = begins[n]
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if slot_kinds[s] == DATA:
                continue
            for e in range(first, at):
                p = args[e] & MASK
                if args[e] < 0 or colour[p] < 0:
                    continue
                if colour[n] < 0 or example[n] != example[p] or count[colour[n]] != count[colour[p]]:
                    is_root[colour[p]] = True
                else:
                    place = mixed(mixed(np.uint64(colour[n]), e - begins[n]), args[e] >> 32)
                    readers[p] += mixed(place, np.int64(1))
    known = np.zeros(len(is_root), np.uint64)
    for n in range(len(types)):
        c = colour[n]
        if c >= 0:
            if known[c] == 0:
                known[c] = readers[n]
            is_root[c] |= readers[n] == 0 or readers[n] != known[c]


@loop
def grow(colour, is_root, types, args, begins, slot_starts, slot_kinds):
    """Groups of nodes, each a *root* and the producers that nothing else reads.

    Args:
        is_root: for each colour whether its nodes are roots. Those are added whose nodes are read by several groups.

    Returns:
        For each node its root, -1 if it has none.
    """
    root = np.empty(len(types), np.int64)
    while True:
        root[:] = -1  # of a producer: the root of its readers, -2 if there are several
        is_done = True
        for n in range(len(types) - 1, -1, -1):
            c = colour[n]
            if c < 0:
                continue
            if not is_root[c] and root[n] < 0:
                is_root[c], is_done = True, False
            own = np.int64(n) if is_root[c] else root[n]
            root[n] = own
            at = begins[n]
            for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
                first, at = entries(slot_kinds[s], args, at)
                if slot_kinds[s] == DATA:
                    continue
                for e in range(first, at):
                    if args[e] >= 0:
                        p = args[e] & MASK
                        root[p] = own if root[p] == -1 or root[p] == own else np.int64(-2)
        if is_done:
            for n in range(len(types)):
                if colour[n] < 0:
                    root[n] = -1
            return root


@loop
def groups_of(root, most_nodes):
    """The members of each group of more than one node, and of at most so many."""
    size = np.zeros(len(root), np.int64)
    for n in range(len(root)):
        if root[n] >= 0:
            size[root[n]] += 1
    number, starts, count, total = np.full(len(root), -1, np.int64), np.zeros(len(root) + 1, np.int64), 0, 0
    for n in range(len(root)):
        if 1 < size[n] <= most_nodes:
            number[n] = count
            total += size[n]
            count += 1
            starts[count] = total
    members, at = np.empty(total, np.int64), starts[:count].copy()
    for n in range(len(root)):
        if root[n] >= 0 and number[root[n]] >= 0:
            g = number[root[n]]
            members[at[g]] = n
            at[g] += 1
    return members, starts[: count + 1]


@loop
def used_outside(members, starts, kind, value_begin, types, args, begins, slot_starts, slot_kinds, output_starts, refs):
    """Of the values that members of a kind of group compute, those that are read outside or are results.

    Args:
        value_begin: where the values of a kind begin among those of all kinds.

    Returns:
        A flag for each value of each kind; for each node the number of its group, or -1; and the number of its first
        value in its kind.
    """
    group_of, value_of = np.full(len(types), -1, np.int64), np.zeros(len(types), np.int64)
    for g in range(len(starts) - 1):
        number = value_begin[kind[g]]
        for n in members[starts[g] : starts[g + 1]]:
            group_of[n], value_of[n] = g, number
            number += output_starts[types[n] + 1] - output_starts[types[n]]
    is_used = np.zeros(value_begin[-1], np.bool_)
    for n in range(len(types)):
        at = begins[n]
        for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
            first, at = entries(slot_kinds[s], args, at)
            if slot_kinds[s] == DATA:
                continue
            for e in range(first, at):
                producer = args[e] & MASK
                if args[e] >= 0 and group_of[producer] >= 0 and group_of[producer] != group_of[n]:
                    is_used[value_of[producer] + (args[e] >> 32)] = True
    for ref in refs:
        if ref >= 0 and group_of[ref & MASK] >= 0:
            is_used[value_of[ref & MASK] + (ref >> 32)] = True
    return is_used, group_of, value_of


@loop
def merge_nodes(
    members, starts, anchors, kind, found_types, type_of, output_of, group_of, value_of,
    types, args, begins, slot_starts, slot_kinds,
):  # fmt: skip
    """Each group becomes one node, in the place of its anchor; all types and references are renumbered.

    Args:
        anchors: of each group the member after everything that it reads and before everything outside that reads it.
        found_types: the type of each kind of group. type_of: the new number of each type.
        output_of: for each value of each kind its number among the outputs of the new node.

    Returns:
        The types and args of all nodes; for every old node the new one; and how many new ones have their place before
        each old one.
    """
    node_of, before, node = np.empty(len(types), np.int64), np.empty(len(types) + 1, np.int64), 0
    for n in range(len(types)):
        before[n] = node
        if group_of[n] < 0 or anchors[group_of[n]] == n:
            node_of[n], node = node, node + 1
    before[len(types)] = node
    for n in range(len(types)):
        if group_of[n] >= 0:
            node_of[n] = node_of[anchors[group_of[n]]]
    new_types, new_args = np.empty(node, np.int64), np.empty(len(args), np.int64)
    outer, out = np.empty(MOST_OUTER, np.int64), 0
    for n in range(len(types)):
        g = group_of[n]
        if g < 0:
            new_types[node_of[n]] = type_of[types[n]]
            at = begins[n]
            for s in range(slot_starts[types[n]], slot_starts[types[n] + 1]):
                length = at
                first, at = entries(slot_kinds[s], args, at)
                for e in range(length, first):
                    new_args[out], out = args[e], out + 1
                for e in range(first, at):
                    is_data = slot_kinds[s] == DATA
                    new_args[out] = args[e] if is_data else moved(args[e], group_of, value_of, output_of, node_of)
                    out += 1
            continue
        if anchors[g] != n:
            continue
        new_types[node_of[n]] = found_types[kind[g]]
        num_outer = 0
        for m in members[starts[g] : starts[g + 1]]:
            at = begins[m]
            for s in range(slot_starts[types[m]], slot_starts[types[m] + 1]):
                first, at = entries(slot_kinds[s], args, at)
                for e in range(first, at):
                    if slot_kinds[s] == DATA:
                        new_args[out], out = args[e], out + 1
                        continue
                    if args[e] >= 0 and group_of[args[e] & MASK] == g:
                        continue
                    number = 0
                    while number < num_outer and outer[number] != args[e]:
                        number += 1
                    if number == num_outer:
                        outer[num_outer], num_outer = args[e], num_outer + 1
                        new_args[out], out = moved(args[e], group_of, value_of, output_of, node_of), out + 1
    return new_types, new_args[:out], node_of, before


@inner_loop
def moved(ref, group_of, value_of, output_of, node_of):
    """A reference after nodes were merged."""
    if ref < 0:
        return ref
    node, number = ref & MASK, ref >> 32
    if group_of[node] >= 0:
        number = output_of[value_of[node] + number]
    return node_of[node] + (number << 32)


@loop
def move_refs(refs, group_of, value_of, output_of, node_of):
    """References after nodes were merged."""
    found = np.empty(len(refs), np.int64)
    for e in range(len(refs)):
        found[e] = moved(refs[e], group_of, value_of, output_of, node_of)
    return found
