"""Radix trees over token ids: what an engine's KV cache holds, shared by running requests and kept for later ones.

One tree for each version of the weights under which requests were sent: none finds what another one's computed.

Tokens on the path of a running request are locked; of the rest, the least recently used leaf gives up its tail first.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Node:
    """A run of tokens behind its parent's."""

    tokens: list[int]
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)
    """By their first token."""
    users: int = 0
    """Running requests whose path it is on."""
    last_used: int = 0


class PrefixCache:
    """Counts tokens; knows no capacity."""

    def __init__(self) -> None:
        self._clock = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything. Only while nothing is locked."""
        self._roots: dict[int, Node] = {}
        self.num_tokens = 0
        self.num_locked = 0

    @property
    def num_evictable(self) -> int:
        return self.num_tokens - self.num_locked

    def match(self, ids: list[int], limit: int, version: int = 0) -> tuple[Node, int]:
        """The node at which the longest known prefix of `ids[:limit]` ends, and its length in tokens."""
        return self._walk(self._root(version), ids, limit)

    def insert(self, ids: list[int]) -> Node:
        """Know all of `ids`. Returns the node at which they end."""
        return self.extend(self._root(0), ids)

    def extend(self, node: Node, ids: list[int]) -> Node:
        """Know `ids` behind the path that ends at `node`. Returns the node at which they end."""
        end, length = self._walk(node, ids, len(ids))
        if length == len(ids):
            return end
        self.num_tokens += len(ids) - length
        if end.children or end.parent is None or end.users:
            child = Node(ids[length:], end, last_used=self._clock)
            end.children[ids[length]] = child
            return child
        end.tokens += ids[length:]
        end.last_used = self._clock
        return end

    def lock(self, node: Node) -> None:
        """Keep the path to `node` until it is unlocked as often."""
        self._use(node, 1)

    def unlock(self, node: Node) -> None:
        self._use(node, -1)

    def evict(self, num_tokens: int) -> int:
        """Forget up to so many tokens that nobody uses. Returns how many."""
        evicted = 0
        while evicted < num_tokens and (leaf := self._oldest_free_leaf()) is not None:
            evicted += self._trim(leaf, num_tokens - evicted)
        self.num_tokens -= evicted
        return evicted

    def _root(self, version: int) -> Node:
        root = self._roots.get(version)
        if root is None:
            root = self._roots[version] = Node([], None)
        return root

    def _walk(self, node: Node, ids: list[int], limit: int) -> tuple[Node, int]:
        """Down from `node` along `ids[:limit]`: where they leave the tree, and after how many tokens."""
        self._clock += 1
        length = 0
        while length < limit and (child := node.children.get(ids[length])) is not None:
            child.last_used = self._clock
            common = _common_prefix(child.tokens, ids, length, limit)
            if common < len(child.tokens):
                return self._split(child, common), length + common
            node, length = child, length + common
        return node, length

    def _use(self, node: Node | None, change: int) -> None:
        while node is not None:
            before, node.users = node.users, node.users + change
            if not before or not node.users:
                self.num_locked += change * len(node.tokens)
            node = node.parent

    def _split(self, node: Node, length: int) -> Node:
        """Cut a node in two; returns the upper one, new, with `length` tokens. The lower one keeps its identity."""
        assert node.parent is not None
        upper = Node(node.tokens[:length], node.parent, users=node.users, last_used=node.last_used)
        node.parent.children[upper.tokens[0]] = upper
        node.tokens = node.tokens[length:]
        node.parent = upper
        upper.children[node.tokens[0]] = node
        return upper

    def _oldest_free_leaf(self) -> Node | None:
        oldest: Node | None = None
        stack = [node for root in self._roots.values() for node in root.children.values()]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if not node.children and not node.users and (oldest is None or node.last_used < oldest.last_used):
                oldest = node
        return oldest

    def _trim(self, leaf: Node, num_tokens: int) -> int:
        """Take up to so many tokens from a leaf's tail. Returns how many."""
        assert leaf.parent is not None
        if num_tokens < len(leaf.tokens):
            del leaf.tokens[-num_tokens:]
            return num_tokens
        del leaf.parent.children[leaf.tokens[0]]
        return len(leaf.tokens)


def _common_prefix(tokens: list[int], ids: list[int], start: int, limit: int) -> int:
    """How many of `tokens` are equal to those of `ids[start:limit]`; the first is known to be."""
    length = min(len(tokens), limit - start)
    if (tokens if length == len(tokens) else tokens[:length]) == ids[start : start + length]:
        return length
    equal, unequal = 1, length
    while unequal - equal > 1:
        middle = (equal + unequal) // 2
        if tokens[equal:middle] == ids[start + equal : start + middle]:
            equal = middle
        else:
            unequal = middle
    return equal
