"""An output layer as named arrays, in a form that does not depend on its framework.

The structure of a layer is built again from its method, counts, options and seed. A digest of the structure that was
trained detects a different result. An option that is an array is stored as `option.NAME`, a parameter as
`parameter.NAME` under its canonical name, and all other options as JSON text.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.harness import registry
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.options import Given, Nested, Spelled
from vocabench.impls.spec import Arrays, LayerSpec, check_options

_REQUIRED, _OPTIONAL = ("method", "counts"), ("options", "seed", "structure")
_PARAMETER, _OPTION = "parameter.", "option."


def arrays_of(spec: LayerSpec, structure: Arrays, params: Arrays) -> dict[str, ArrayLike]:
    """Return the arrays of a layer.

    Args:
        spec: Specification of the layer.
        structure: Its current structure.
        params: Its parameters. Those of a layer in float64 are kept as they are, all others in float32.
    """
    arrays: dict[str, ArrayLike] = {
        "method": spec.method,
        "seed": spec.seed,
        "structure": _digest(structure),
        "counts": spec.counts,
    }
    plain: dict[str, object] = {}
    for name, value in check_options(spec.definition, spec.definition.held(spec.options, structure)).items():
        if isinstance(value, Given):
            arrays[_OPTION + name] = value.array
        elif isinstance(value, Spelled):
            arrays[_OPTION + name] = np.array(value.words)
        elif isinstance(value, Nested):
            plain[name] = json.loads(value.text)
        elif value != spec.definition.options[name].default:
            plain[name] = value
    arrays["options"] = json.dumps(plain)
    return arrays | {_PARAMETER + name: np.asarray(value, stored_dtype(spec)) for name, value in params.items()}


def stored_dtype(spec: LayerSpec) -> type[np.floating]:
    """Return the type in which the parameters of a layer are stored."""
    return np.float64 if spec.dtype == "float64" else np.float32


def layer_of(arrays: Arrays, dim: int) -> tuple[LayerSpec, Arrays]:
    """Return the specification, in float32, and the parameters of a layer of width `dim`.

    Raises:
        BadInput: An array is missing or invalid, or the structure is not the one that was trained.
    """
    spec = LayerSpec.build(
        registry.definition(_text("method", arrays["method"])),
        counts=arrays["counts"],
        dim=dim,
        seed=_integer("seed", arrays["seed"]) if "seed" in arrays else 0,
        options=_options(arrays),
    )
    if "structure" in arrays and _text("structure", arrays["structure"]) != _digest(spec.structure):
        allowed = "clusters or a tree that are given" if spec.options else "the same counts"
        raise BadInput(
            f"the structure of {spec.method} that its options make is not the one it was trained with: "
            f"allowed: {allowed}"
        )
    return spec, spec.check_parameters(with_prefix(_PARAMETER, arrays))


def check_names(arrays: Arrays, further: Sequence[str], further_prefix: str | None = None) -> None:
    """Raise `BadInput` if an array is missing or unknown.

    Args:
        arrays: Arrays of a layer, and of more.
        further: Names of further arrays, which are required.
        further_prefix: Prefix of the names of still further arrays.
    """
    required, prefixes = (*_REQUIRED, *further), [_PARAMETER, _OPTION]
    prefixes += [further_prefix] if further_prefix else []
    if missing := [name for name in required if name not in arrays]:
        raise BadInput(f"no {', '.join(missing)}: allowed: {', '.join(required)}, {_PARAMETER}NAME, and more")
    for name in arrays:
        if name not in (*required, *_OPTIONAL) and not name.startswith(tuple(prefixes)):
            raise unknown("array", name, (*required, *_OPTIONAL, *(f"{prefix}NAME" for prefix in prefixes)))


def with_prefix(prefix: str, arrays: Arrays) -> Arrays:
    """Return the arrays whose names start with `prefix`, under the rest of their names."""
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


def _digest(structure: Arrays) -> str:
    """Return a digest of the values, which does not depend on the integer type that holds them."""
    digest = hashlib.sha256()
    for name, value in sorted(structure.items()):
        array = np.ascontiguousarray(value, np.int64 if value.dtype.kind in "iu" else value.dtype)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _options(arrays: Arrays) -> dict[str, Any]:
    try:
        plain = json.loads(_text("options", arrays["options"])) if "options" in arrays else {}
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"options: {error}: allowed: a JSON object") from None
    if not isinstance(plain, dict):
        raise BadInput(f"options={str(plain)[:40]!r}: allowed: a JSON object")
    given = with_prefix(_OPTION, arrays)
    return plain | {name: value.tolist() if value.dtype.kind == "U" else value for name, value in given.items()}


def _text(name: str, value: NDArray) -> str:
    if value.shape != () or value.dtype.kind != "U":
        raise BadInput(f"{name} is {value.dtype} of shape {value.shape}: allowed: one text")
    return str(value)


def _integer(name: str, value: NDArray) -> int:
    if value.shape != () or value.dtype.kind not in "iu":
        raise BadInput(f"{name} is {value.dtype} of shape {value.shape}: allowed: one whole number")
    return int(value)
