"""Makes a set of leaves consecutive in a PQ tree (see `tree`), by the templates of Booth & Lueker 1976.

In: the leaves of the set, which are called *full*; all other leaves are *empty*. Out: the changed tree, or None if no
order is left. An inner node is full or empty when all its children are, else *partial*. The *root* of the set is the
lowest node above all its leaves. The set can be made consecutive when every partial node from the root down matches a
template:

    P3, P5       a P node below the root has at most one partial child
    Q2           a Q node below the root reads, from one of its ends: full children, at most one partial, empty ones
    P2, P4, P6   a P node that is the root has at most two partial children
    Q2, Q3       a Q node that is the root reads: empty children, at most one partial, full, at most one partial, empty

(L1, P1 and Q1: a full node stays as it is.) Whether all templates match can be seen before anything is changed, so
`label` decides first, and a refused set leaves the tree as it was. Then `gather` changes the tree: at the root, a Q
node gets the partial children, and each of them is dissolved into it, from the top down. Both visit only nodes above
leaves of the set and the ends of Q nodes, never the empty children, which makes the algorithm fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from edbatch.pq.nodes import LeafNode, PNode, PQNode, QNode


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of the nodes from the root of a set down: full nodes; for partial nodes, full and partial children."""

    root: PQNode
    full: set[PQNode]
    full_of: dict[PQNode, list[PQNode]]
    partial_of: dict[PQNode, list[PQNode]]


def label(leaves: list[LeafNode]) -> Labels | None:
    """Labels for a set of two leaves or more; None if there is no order in which it is consecutive."""
    root, touched_of = _climb(leaves)
    nodes: list[PQNode] = [root]
    for node in nodes:  # grows while it is read: parents before children
        nodes.extend([child for child in touched_of[node] if child in touched_of])
    full: set[PQNode] = set(leaves)
    labels = Labels(root, full, {}, {})
    for node in reversed(nodes):
        touched = touched_of[node]
        partial = [child for child in touched if child not in full]
        if not partial and len(touched) == node.num_children():
            full.add(node)
            continue
        labels.full_of[node] = [child for child in touched if child in full]
        labels.partial_of[node] = partial
        if len(partial) > (2 if node is root else 1):
            return None
        if isinstance(node, QNode) and _longest_run(node, labels) < len(touched):
            return None
    return labels


def _climb(leaves: list[LeafNode]) -> tuple[PQNode, dict[PQNode, list[PQNode]]]:
    """The root of a set and, for every inner node above a leaf of it, the children that are not empty.

    Climbs one step from each leaf in turn until only one path is left, so that few nodes above the root are visited.
    """
    touched_of: dict[PQNode, list[PQNode]] = {}
    climbing: list[PQNode] = list(leaves)
    seen, at_top = 0, 0
    while len(climbing) - seen + at_top > 1:
        node = climbing[seen]
        seen += 1
        parent = node.find_parent()
        if parent is None:
            top, at_top = node, 1
        elif parent in touched_of:
            touched_of[parent].append(node)
        else:
            touched_of[parent] = [node]
            climbing.append(parent)
    root = top if at_top else climbing[-1]
    while len(touched_of[root]) == 1:
        (root,) = touched_of[root]
    return root, touched_of


def _longest_run(node: QNode, labels: Labels) -> int:
    """How many children in a row are not empty, with partial ones only at the ends; below the root, from one end."""
    full, partial = labels.full, labels.partial_of[node]

    def run(before: PQNode, child: PQNode) -> int:
        length = 0
        while child in full:
            before, child = child, child.beyond(before)
            length += 1
        return length + (child in partial)

    if node is not labels.root:
        return max(run(node.rim, node.rim.one), run(node.rim, node.rim.other))
    middle = next(chain(labels.full_of[node], partial))
    return run(middle, middle.one) + 1 + run(middle, middle.other)


def gather(labels: Labels) -> PQNode:
    """Change the tree so that it keeps just the orders in which the set is consecutive.

    Returns:
        The node that now stands where the root of the set stood.
    """
    root = labels.root
    if root in labels.full:
        return root
    partial = labels.partial_of[root]
    if isinstance(root, QNode):
        place: PQNode = root
        target = root  # Q2, Q3
    else:
        assert isinstance(root, PNode)
        full = _take_full(root, labels)
        if not partial:  # P2
            root.adopt(*full)
            return root
        target = QNode([*partial[:1], *full, *partial[1:]])  # P4, P6
        if root.children:
            root.adopt(target)
            place = root
        else:
            root.replace_by(target)
            place = target
    for node in partial:
        _dissolve(node, target, node.one if node.one in labels.full or node.one in partial else node.other, labels)
    return place


def _take_full(node: PNode, labels: Labels) -> list[PQNode]:
    """Leave a P node only its empty children. Returns a list with one node for all full ones, or an empty list."""
    full = labels.full_of[node]
    for child in chain(full, labels.partial_of[node]):
        del node.children[child]
    if len(full) < 2:
        return full
    together = PNode(full)
    labels.full.add(together)
    return [together]


def _dissolve(node: PQNode, target: QNode, inner: PQNode, labels: Labels) -> None:
    """Replace `node`, a partial child of `target`, by its children; then its own partial child likewise, and so on.

    Args:
        inner: the neighbour of `node` on the side where the full leaves are to be.
    """
    while True:
        partial = labels.partial_of[node]
        if isinstance(node, PNode):  # P3, P5
            full = _take_full(node, labels)
            empty = [node] if len(node.children) > 1 else node.listed()
            last, *rest = children = [*empty, *partial, *full]
            last.stand_in_for(node)
            for child in rest:
                child.insert(last, inner)
                last = child
            for child in children:
                child.parent = target
            target.size += len(children) - 1
        else:  # Q2
            assert isinstance(node, QNode)
            rim, outer = node.rim, node.beyond(inner)
            full_end = next((end for end in (rim.one, rim.other) if end in labels.full), *partial)
            empty_end = rim.beyond(full_end)
            outer.relink(node, empty_end)
            empty_end.relink(rim, outer)
            inner.relink(node, full_end)
            full_end.relink(rim, inner)
            node.dissolved_into = target
            target.size += node.size - 1
        if not partial:
            return
        (node,) = partial
        inner = node.one if node.one in labels.full or node.one is inner else node.other
