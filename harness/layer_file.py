"""A trained layer in one file, with hidden vectors of its model, for use in any framework.

The format is NumPy's .npz, so that a layer can be written without this project:

    np.savez("layer.npz", method="full_softmax", counts=counts_V, hidden=hidden_ND, targets=targets_N,
             **{"parameter.weight": weight_VD, "parameter.bias": bias_V})

Required are `method`, `counts`, `hidden`, `targets` and the parameters of the method under their canonical names.
Optional are `options` (JSON text), an option that is an array as `option.NAME`, `seed` for a random structure, and
`structure`. The structure is built again from these; `structure`, a digest of the one that was trained, detects a
different result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabench.harness import layer_arrays, layers, registry
from vocabench.harness.atomic_write import atomic_writer
from vocabench.harness.npz_files import SUFFIX, read_npz
from vocabench.impls.cache_folder import sha256_of_file
from vocabench.impls.contract import Layer
from vocabench.impls.errors import BadInput
from vocabench.impls.spec import Arrays, LayerSpec, check_ids

_FURTHER = ("hidden", "targets")


@dataclass(frozen=True)
class LayerFile:
    """Checked contents of a layer file.

    Attributes:
        name: Name of the file without its suffix.
        sha256: Checksum of the file.
        spec: Specification of the layer, in float32.
        params: Parameters under their canonical names, in vocabulary order.
        hidden_ND: (N, D) hidden vectors of the layer's model.
        targets_N: (N,) id of the word that follows at each hidden vector.
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
        """The methods that compute the same function of the same parameters, including the layer's own."""
        return registry.same_function(self.spec.method)

    def spec_of(self, method: str, dtype: str) -> LayerSpec:
        """Return the specification of the layer as one of `methods`."""
        if method not in self.methods:
            raise BadInput(f"method {method!r} for the layer of {self.name}: allowed: {', '.join(self.methods)}")
        return self.spec.computed_by(registry.definition(method), dtype)

    def layer(self, framework: str, *, device: str = "cpu", dtype: str | None = None) -> Layer:
        """Create the trained layer in a framework. The arguments are those of `layers.create`."""
        dtype = dtype or ("float64" if framework == "numpy" else "float32")
        layer = layers.from_spec(framework, self.spec_of(self.spec.method, dtype), device)
        layer.load(self.params)
        return layer


def save(path: str | Path, layer: Layer, hidden: ArrayLike, targets: ArrayLike) -> str:
    """Write a layer atomically, with its current structure. The folder is created if it is missing.

    Args:
        path: Path of the file, which ends in .npz.
        layer: Layer to write. Parameters in float64 are kept as they are, all others in float32.
        hidden: (N, D) hidden vectors that the layer's model computes from held-out text, preferably in random order.
        targets: (N,) id of the word that follows at each hidden vector.

    Returns:
        The sha256 of the file.

    Raises:
        BadInput: Hidden vectors or targets do not fit the layer, or the file cannot be written.
    """
    path, spec = Path(path), layer.spec
    _check_batch(spec, hidden, targets)
    members = layer_arrays.arrays_of(spec, layer.structure(), layer.parameters())
    members |= {"hidden": np.asarray(hidden, layer_arrays.stored_dtype(spec)), "targets": np.asarray(targets)}
    with _writable(path.parent), atomic_writer(path) as file:
        np.savez(file, **members)  # type: ignore[arg-type]
    return sha256_of_file(path)


def check_folder(folder: Path) -> None:
    """Create a folder if it is missing.

    Raises:
        BadInput: It cannot be created or written to.
    """
    with _writable(folder), tempfile.NamedTemporaryFile(dir=folder):
        pass


@contextmanager
def _writable(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise BadInput(f"folder {folder}: {reason}: allowed: free space in a place that can be written") from error


def load(path: str | Path) -> LayerFile:
    """Read and check a layer file.

    Raises:
        BadInput: The file is missing or invalid. The message says what is wrong and what is allowed.
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
    arrays = read_npz(path)
    layer_arrays.check_names(arrays, _FURTHER)
    return arrays


def _layer(members: Arrays) -> tuple[LayerSpec, Arrays]:
    hidden_ND = members["hidden"]
    if hidden_ND.ndim != 2 or not hidden_ND.size:
        raise BadInput(f"hidden has shape {hidden_ND.shape}: allowed: (N, D), from one vector on")
    return layer_arrays.layer_of(members, hidden_ND.shape[1])


def _check_batch(spec: LayerSpec, hidden: ArrayLike, targets: ArrayLike) -> tuple[NDArray, NDArray[np.int64]]:
    hidden_ND, targets_N = np.asarray(hidden), check_ids("targets", targets, spec.vocab)
    if hidden_ND.shape != (len(targets_N), spec.dim) or hidden_ND.dtype.kind != "f":
        actual = f"shape {hidden_ND.shape} and dtype {hidden_ND.dtype}"
        expected = f"floats of shape {(len(targets_N), spec.dim)}, one for each target"
        raise BadInput(f"hidden has {actual}: allowed: {expected}")
    if not np.isfinite(hidden_ND).all():
        raise BadInput("hidden holds NaN or infinity: allowed: finite numbers")
    return hidden_ND.astype(np.float64), targets_N
