"""Binary trees cut into blocks of several levels, for a search that selects paths after each block.

Liu et al. 2022, section 3.3, search a Huffman tree two or three levels at a time, and encode a path through these
levels by its turns as a binary number.

Shape letters: B blocks, J inner nodes of a block, P paths through a block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MOST_LEVELS = 8  # a block has up to 2^levels paths


@dataclass(frozen=True)
class PathBlocks:
    """A tree over V words in blocks, each a perfect binary tree of m levels. Block 0 has the root.

    Where a path ends at a word before m turns, its last turns are to the left of no node.

    Attributes:
        node_BJ: (B, 2^m - 1) inner nodes level by level, each level from left to right; -1 for no node.
        exit_BP: (B, 2^m) where each path leads, numbered by its turns from the highest bit on, 0 for left: a word by
            its id, or block b as V + b; -1 for nowhere.
    """

    node_BJ: NDArray[np.int64]
    exit_BP: NDArray[np.int64]


def blocks(children: NDArray[np.int64], levels: int) -> PathBlocks:
    """Cut a tree into blocks.

    Args:
        children: As in `huffman.HuffmanTree`.
        levels: Levels m of a block, from 1 to `MOST_LEVELS`.
    """
    vocab = len(children) + 1
    nodes, exits, count = [], [], 1
    root_R = np.array([2 * vocab - 2])
    while len(root_R):
        at_RW, of_round = root_R[:, None], []
        for _ in range(levels):
            inner_RW = at_RW >= vocab
            node_RW = np.where(inner_RW, at_RW - vocab, -1)
            of_round.append(node_RW)
            # A word stays where the path is, to the left.
            stay_RW2 = np.stack([at_RW, np.full_like(at_RW, -1)], axis=2)
            below_RW2 = np.where(inner_RW[:, :, None], children[np.maximum(node_RW, 0)], stay_RW2)
            at_RW = below_RW2.reshape(len(root_R), -1)
        nodes.append(np.concatenate(of_round, axis=1))
        is_inner = at_RW >= vocab
        root_R = at_RW[is_inner]
        at_RW[is_inner] = vocab + count + np.arange(len(root_R))
        count += len(root_R)
        exits.append(at_RW)
    return PathBlocks(np.concatenate(nodes), np.concatenate(exits))


class Cuts:
    """The blocks of a tree, which are made once for each number of levels."""

    def __init__(self, children: NDArray[np.int64]) -> None:
        self._children = children
        self._made: dict[int, PathBlocks] = {}

    def of(self, levels: int) -> PathBlocks:
        if levels not in self._made:
            self._made[levels] = blocks(self._children, levels)
        return self._made[levels]
