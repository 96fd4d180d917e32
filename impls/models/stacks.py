"""Parameters of a stack's blocks, stacked: `encoder.0.norm_scale` and its like of all blocks as
`encoder.*.norm_scale`, with the blocks outside."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from vocabench.impls.spec import Arrays, Shapes

_BLOCK = re.compile(r"(?<=coder\.)\d+(?=\.)")


def _members(names: Iterable[str]) -> dict[str, list[str]]:
    """The canonical names of each stacked one, whose blocks come in order; of others themselves."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(_BLOCK.sub("*", name), []).append(name)
    return found


def stacked_shapes(shapes: Shapes) -> Shapes:
    """Of what `stack` gives."""
    return {
        name: (len(members), *shapes[members[0]]) if "*" in name else shapes[name]
        for name, members in _members(shapes).items()
    }


def stack(params: Arrays) -> Arrays:
    """Canonical parameters with those of the blocks stacked."""
    return {
        name: np.stack([params[member] for member in members]) if "*" in name else params[name]
        for name, members in _members(params).items()
    }


def unstack(stacked: Arrays) -> Arrays:
    """What `stack` was given, in another order."""
    params: Arrays = {}
    for name, value in stacked.items():
        if "*" in name:
            params |= {name.replace("*", str(number)): block for number, block in enumerate(value)}
        else:
            params[name] = value
    return params
