"""A trained layer in one file, with hidden vectors of its model: from any framework, for any framework.

NumPy's .npz format, so that whoever has trained a layer can write one without this project:

    np.savez("layer.npz", method="full_softmax", counts=counts_V, hidden=hidden_ND, targets=targets_N,
             **{"parameter.weight": weight_VD, "parameter.bias": bias_V})

`method`, `counts`, `hidden`, `targets` and the method's parameters under their canonical names must be there. `options`
(JSON text), an array option as `option.NAME`, and `seed`, where the structure is random, may be. The structure is made
anew from these; `structure`, a digest of what training had, tells whether it is the same one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.harness import layers, registry
from vocabench.harness.atomic_write import written_whole
from vocabench.harness.datasets.shared.local_files import DAMAGED_ZIP, sha256_of_file
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.options import Given, Spelled, read_npy
from vocabench.impls.spec import Arrays, LayerSpec, check_ids, check_options

SUFFIX = ".npz"
_REQUIRED, _OPTIONAL = ("method", "counts", "hidden", "targets"), ("options", "seed", "structure")
_PARAMETER, _OPTION = "parameter.", "option."


@dataclass(frozen=True)
class LayerFile:
    """What such a file holds, once it is found to be a layer.

    Attributes:
        name: Of the file, without its suffix.
        sha256: Of the file.
        spec: The layer, in float32.
        params: Its parameters under their canonical names, in vocabulary order.
        hidden_ND: (N, D) hidden vectors that the layer's model gave.
        targets_N: (N,) the word that came next at each.
    """

    name: str
    sha256: str
    spec: LayerSpec
    params: Arrays = field(repr=False)
    hidden_ND: NDArray[np.float64] = field(repr=False)
    targets_N: NDArray[np.int64] = field(repr=False)
    licence: str = "the user's own"
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts_V(self) -> NDArray[np.int64]:
        return self.spec.counts

    @property
    def methods(self) -> list[str]:
        """The layer's method, and all others that compute the same function of the same parameters."""
        return registry.same_function(self.spec.method)

    def spec_of(self, method: str, dtype: str) -> LayerSpec:
        """The layer as one of `methods`."""
        if method not in self.methods:
            raise BadInput(f"method {method!r} for the layer of {self.name}: allowed: {', '.join(self.methods)}")
        return dataclasses.replace(self.spec, definition=registry.definition(method), dtype=dtype)

    def layer(self, framework: str, *, device: str = "cpu", dtype: str | None = None) -> Layer:
        """The trained layer in a framework, as `layers.create` makes an untrained one."""
        dtype = dtype or ("float64" if framework == "numpy" else "float32")
        layer = layers.from_spec(framework, self.spec_of(self.spec.method, dtype), device)
        layer.load(self.params)
        return layer


def save(path: str | Path, layer: Layer, hidden: ArrayLike, targets: ArrayLike) -> str:
    """Write a layer, with the clusters that it has by now, whole or not at all; the folder is made where it is missing.

    Args:
        path: Ends in .npz.
        layer: Its parameters are kept in float32, those of float64 as they are.
        hidden: (N, D) hidden vectors that its model gives to text, best in no order and held out from training.
        targets: (N,) the word that came next at each.

    Returns:
        The file's sha256.

    Raises:
        BadInput: Hidden vectors or targets are not those of such a layer, or the file cannot be written.
    """
    path, spec, structure = Path(path), layer.spec, layer.structure()
    dtype = np.float64 if spec.dtype == "float64" else np.float32
    _check_batch(spec, hidden, targets)
    members: dict[str, ArrayLike] = {
        "method": spec.method,
        "seed": spec.seed,
        "structure": _digest(structure),
        "counts": spec.counts,
        "hidden": np.asarray(hidden, dtype),
        "targets": np.asarray(targets),
    }
    plain: dict[str, object] = {}
    for name, value in check_options(spec.definition, spec.definition.held(spec.options, structure)).items():
        if isinstance(value, Given):
            members[_OPTION + name] = value.array
        elif isinstance(value, Spelled):
            members[_OPTION + name] = np.array(value.words)
        elif value != spec.definition.options[name].default:
            plain[name] = value
    members["options"] = json.dumps(plain)
    members |= {_PARAMETER + name: np.asarray(value, dtype) for name, value in layer.parameters().items()}
    with _writing(path.parent), written_whole(path) as file:
        np.savez(file, **members)  # type: ignore[arg-type]
    return sha256_of_file(path)


def check_folder(folder: Path) -> None:
    """Makes it where it is missing.

    Raises:
        BadInput: It cannot be made or written to.
    """
    with _writing(folder), tempfile.NamedTemporaryFile(dir=folder):
        pass


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"folder {folder}: {reason}: allowed: free space in a place that can be written") from error


def load(path: str | Path) -> LayerFile:
    """Read a layer, and check that it is one.

    Raises:
        BadInput: What is wrong with the file, and what is allowed.
    """
    path = Path(path)
    if not path.is_file():
        raise BadInput(f"layer file {path}: no such file: allowed: the path of an {SUFFIX} file with a trained layer")
    try:
        members = _members(path)
        spec, params = _layer(members)
        hidden_ND, targets_N = _check_batch(spec, members["hidden"], members["targets"])
    except BadInput as error:
        raise BadInput(f"layer file {path}: {error}") from None
    return LayerFile(path.stem, sha256_of_file(path), spec, params, hidden_ND, targets_N)


def _members(path: Path) -> Arrays:
    """Each array under its name. Nothing is written to disk on the way, and no pickle is loaded."""
    found: Arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                with archive.open(info) as file:
                    try:
                        found[info.filename.removesuffix(".npy")] = read_npy(file, info.file_size)
                    except ValueError as error:
                        raise BadInput(f"{info.filename} {error}") from None
    except (*DAMAGED_ZIP, OSError, MemoryError) as error:
        raise BadInput(f"{error}: allowed: an {SUFFIX} file that fits into memory") from None
    missing = [name for name in _REQUIRED if name not in found]
    if missing:
        raise BadInput(f"no {', '.join(missing)}: allowed: {', '.join(_REQUIRED)}, {_PARAMETER}NAME, and more")
    for name in found:
        if name not in (*_REQUIRED, *_OPTIONAL) and not name.startswith((_PARAMETER, _OPTION)):
            raise unknown("array", name, (*_REQUIRED, *_OPTIONAL, f"{_PARAMETER}NAME", f"{_OPTION}NAME"))
    return found


def _layer(members: Arrays) -> tuple[LayerSpec, Arrays]:
    hidden_ND = members["hidden"]
    if hidden_ND.ndim != 2 or not hidden_ND.size:
        raise BadInput(f"hidden has shape {hidden_ND.shape}: allowed: (N, D), from one vector on")
    spec = LayerSpec.build(
        registry.definition(_text("method", members["method"])),
        counts=members["counts"],
        dim=hidden_ND.shape[1],
        seed=_whole("seed", members["seed"]) if "seed" in members else 0,
        options=_options(members),
    )
    if "structure" in members and _text("structure", members["structure"]) != _digest(spec.structure):
        given = "clusters or a tree that are given" if spec.options else "the same counts"
        raise BadInput(
            f"the structure of {spec.method} that its options make is not the one it was trained with: allowed: {given}"
        )
    return spec, spec.check_parameters(_under(_PARAMETER, members))


def _digest(structure: Arrays) -> str:
    """Equal for equal numbers, whatever type of whole number holds them."""
    digest = hashlib.sha256()
    for name, value in sorted(structure.items()):
        array = np.ascontiguousarray(value, np.int64 if value.dtype.kind in "iu" else value.dtype)
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _options(members: Arrays) -> dict[str, Any]:
    try:
        plain = json.loads(_text("options", members["options"])) if "options" in members else {}
    except (ValueError, RecursionError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"options: {error}: allowed: a JSON object") from None
    if not isinstance(plain, dict):
        raise BadInput(f"options={str(plain)[:40]!r}: allowed: a JSON object")
    return plain | {
        name: value.tolist() if value.dtype.kind == "U" else value for name, value in _under(_OPTION, members).items()
    }


def _under(prefix: str, members: Arrays) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in members.items() if name.startswith(prefix)}


def _text(name: str, value: NDArray) -> str:
    if value.shape != () or value.dtype.kind != "U":
        raise BadInput(f"{name} is {value.dtype} of shape {value.shape}: allowed: one text")
    return str(value)


def _whole(name: str, value: NDArray) -> int:
    if value.shape != () or value.dtype.kind not in "iu":
        raise BadInput(f"{name} is {value.dtype} of shape {value.shape}: allowed: one whole number")
    return int(value)


def _check_batch(spec: LayerSpec, hidden: ArrayLike, targets: ArrayLike) -> tuple[NDArray, NDArray[np.int64]]:
    hidden_ND, targets_N = np.asarray(hidden), check_ids("targets", targets, spec.vocab)
    if hidden_ND.shape != (len(targets_N), spec.dim) or hidden_ND.dtype.kind != "f":
        what = f"shape {hidden_ND.shape} and dtype {hidden_ND.dtype}"
        raise BadInput(f"hidden has {what}: allowed: floats of shape {(len(targets_N), spec.dim)}, one for each target")
    if not np.isfinite(hidden_ND).all():
        raise BadInput("hidden holds NaN or infinity: allowed: finite numbers")
    return hidden_ND.astype(np.float64), targets_N
