"""The nodes of a PQ tree: leaves, P nodes and Q nodes, made so that a reduction never has to visit empty children.

A P node can let go of any child at once. The children of a Q node are a ring of neighbours without direction, so that
joining and reversing touch only ends; when one Q node is dissolved into another its children keep their parent and
find the Q node they now belong to by union-find.
"""

from __future__ import annotations

from collections.abc import Iterable


class Node:
    """What a tree is made of. `one` and `other` are the neighbours in the ring of a Q node, in no particular order."""

    __slots__ = ("one", "other", "parent")

    def __init__(self) -> None:
        self.parent: PNode | QNode | None = None
        self.one: Node = self
        self.other: Node = self

    def listed(self) -> list[Node]:
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
                    parent.dissolved_into = into.dissolved_into  # halves the path for whoever asks next
                parent = into
            self.parent = parent
        return parent

    def beyond(self, neighbour: Node) -> Node:
        """The neighbour that is not `neighbour`."""
        return self.other if self.one is neighbour else self.one

    def relink(self, old: Node, neighbour: Node) -> None:
        """Have `neighbour` as a neighbour in place of `old`."""
        if self.one is old:
            self.one = neighbour
        else:
            self.other = neighbour

    def insert(self, before: Node, after: Node) -> None:
        """Stand between two that were neighbours."""
        before.relink(after, self)
        after.relink(before, self)
        self.one, self.other = before, after

    def stand_in_for(self, old: Node) -> None:
        """Stand between the neighbours of `old` in its place."""
        self.one, self.other = old.one, old.other
        self.one.relink(old, self)
        self.other.relink(old, self)

    def replace_by(self, node: Node) -> None:
        """Give `node` the place of this one; at the top of the tree there is no place to give."""
        parent = node.parent = self.find_parent()
        if isinstance(parent, PNode):
            del parent.children[self]
            parent.children[node] = None
        elif isinstance(parent, QNode):
            node.stand_in_for(self)


class LeafNode(Node):
    """The leaf with this index among the leaves of the tree."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        super().__init__()
        self.index = index


class PNode(Node):
    """Children in any order: the keys of a dict, so that one can go at once and results are reproducible."""

    __slots__ = ("children",)
    dissolved_into = None  # its children get another parent one by one

    def __init__(self, children: Iterable[Node]) -> None:
        super().__init__()
        self.children: dict[Node, None] = dict.fromkeys(children)
        for child in self.children:
            child.parent = self

    def num_children(self) -> int:
        return len(self.children)

    def listed(self) -> list[Node]:
        return list(self.children)

    def adopt(self, child: Node) -> None:
        self.children[child] = None
        child.parent = self


class QNode(Node):
    """Children in one order or its reverse: a ring closed by `rim`, which is no child; next to it are the two ends."""

    __slots__ = ("dissolved_into", "rim", "size")

    def __init__(self, children: Iterable[Node]) -> None:
        super().__init__()
        self.dissolved_into: QNode | None = None
        self.rim = Node()
        self.size = 0
        last = self.rim
        for child in children:
            child.insert(last, self.rim)
            child.parent = self
            self.size += 1
            last = child

    def num_children(self) -> int:
        return self.size

    def listed(self) -> list[Node]:
        children, before, node = [], self.rim, self.rim.other  # `__init__` puts the first child there
        while node is not self.rim:
            children.append(node)
            before, node = node, node.beyond(before)
        return children
