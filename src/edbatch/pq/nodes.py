"""The nodes of a PQ tree (see `tree`): leaves, P nodes and Q nodes.

When a set of leaves is made consecutive, only nodes above those leaves may be visited, not all the other children. So a
P node can remove any child at once. The children of a Q node form a ring in which a child knows its two neighbours but
not which is left and which is right: joining and reversing Q nodes changes only their ends. When a Q node is dissolved
into another one, its children keep their old parent and find the new one by union-find.
"""

from __future__ import annotations

from collections.abc import Iterable


class PQNode:
    """A node of a tree. `one` and `other` are its neighbours in the ring of a Q node, in no particular order."""

    __slots__ = ("one", "other", "parent")

    def __init__(self) -> None:
        self.parent: PNode | QNode | None = None
        self.one: PQNode = self
        self.other: PQNode = self

    def listed(self) -> list[PQNode]:
        """The children from left to right."""
        return []

    def num_children(self) -> int:
        return 0

    def find_parent(self) -> PNode | QNode | None:
        """The parent, or the Q node that the parent has been dissolved into."""
        parent = self.parent
        if parent is not None and parent.dissolved_into is not None:
            while (into := parent.dissolved_into) is not None:
                if into.dissolved_into is not None:
                    parent.dissolved_into = into.dissolved_into  # halves the path for the next search
                parent = into
            self.parent = parent
        return parent

    def beyond(self, neighbour: PQNode) -> PQNode:
        """The neighbour that is not `neighbour`."""
        return self.other if self.one is neighbour else self.one

    def relink(self, old: PQNode, neighbour: PQNode) -> None:
        """Replace the neighbour `old` by `neighbour`."""
        if self.one is old:
            self.one = neighbour
        else:
            self.other = neighbour

    def insert(self, before: PQNode, after: PQNode) -> None:
        """Go between two nodes that are neighbours."""
        before.relink(after, self)
        after.relink(before, self)
        self.one, self.other = before, after

    def stand_in_for(self, old: PQNode) -> None:
        """Take the place of `old` between its neighbours."""
        self.one, self.other = old.one, old.other
        self.one.relink(old, self)
        self.other.relink(old, self)

    def replace_by(self, node: PQNode) -> None:
        """Put `node` in the place of this one, below its parent; the top of the tree has none."""
        parent = node.parent = self.find_parent()
        if isinstance(parent, PNode):
            del parent.children[self]
            parent.children[node] = None
        elif isinstance(parent, QNode):
            node.stand_in_for(self)


class LeafNode(PQNode):
    """The leaf with this index among the leaves of the tree."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class PNode(PQNode):
    """Children in any order. They are the keys of a dict: removing one is quick, and results are reproducible."""

    __slots__ = ("children",)
    dissolved_into = None  # never: when a P node goes, its children are given their new parent one by one

    def __init__(self, children: Iterable[PQNode]) -> None:
        super().__init__()
        self.children: dict[PQNode, None] = dict.fromkeys(children)
        for child in self.children:
            child.parent = self

    def num_children(self) -> int:
        return len(self.children)

    def listed(self) -> list[PQNode]:
        return list(self.children)

    def adopt(self, child: PQNode) -> None:
        self.children[child] = None
        child.parent = self


class QNode(PQNode):
    """Children in one order or its reverse: a ring with `rim`, which is no child and stands between both ends."""

    __slots__ = ("dissolved_into", "rim", "size")

    def __init__(self, children: Iterable[PQNode]) -> None:
        super().__init__()
        self.dissolved_into: QNode | None = None
        self.rim = PQNode()
        self.size = 0
        last = self.rim
        for child in children:
            child.insert(last, self.rim)
            child.parent = self
            self.size += 1
            last = child

    def num_children(self) -> int:
        return self.size

    def listed(self) -> list[PQNode]:
        children, before, node = [], self.rim, self.rim.other  # `__init__` puts the first child there
        while node is not self.rim:
            children.append(node)
            before, node = node, node.beyond(before)
        return children
