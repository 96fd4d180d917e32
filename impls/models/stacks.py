"""Conversion between parameters per block and stacked parameters.

The parameters `encoder.0.norm_scale`, `encoder.1.norm_scale`, ... become one parameter `encoder.*.norm_scale`, whose
first dimension is the block.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from vocabench.impls.spec import Arrays, Shapes

_BLOCK = re.compile(r"(?<=coder\.)\d+(?=\.)")


def _members(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the canonical names behind each stacked name, in order of blocks; other names stand for themselves."""
    members: dict[str, list[str]] = {}
    for name in names:
        members.setdefault(_BLOCK.sub("*", name), []).append(name)
    return members


def stacked_shapes(shapes: Shapes) -> Shapes:
    """Return the shapes of the result of `stack`."""
    return {
        name: (len(members), *shapes[members[0]]) if "*" in name else shapes[name]
        for name, members in _members(shapes).items()
    }


def stack(params: Arrays) -> Arrays:
    """Return canonical parameters with those of the blocks stacked."""
    return {
        name: np.stack([params[member] for member in members]) if "*" in name else params[name]
        for name, members in _members(params).items()
    }


def unstack(stacked: Arrays) -> Arrays:
    """Return the input of `stack`, possibly in another order."""
    params: Arrays = {}
    for name, value in stacked.items():
        if "*" in name:
            params |= {name.replace("*", str(number)): block for number, block in enumerate(value)}
        else:
            params[name] = value
    return params
