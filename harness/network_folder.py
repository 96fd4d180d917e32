"""A trained network in a folder, for evaluation in any framework.

The folder holds

    network.json   the kind of network and its configuration, the cell that trained it, its data and its scores
    arrays.npz     the parameters under their canonical names, and the output layer as in `layer_arrays`
    words.txt      the words of the output layer in order of their ids, one a line
    sources.txt    of a summarizer, the words of its sources

No pickle is written or read. `network.json` has the sha256 of the other files, which detects damage.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vocabench.harness import layer_arrays, layers, registry
from vocabench.harness.network_kinds import KINDS, Kind
from vocabench.harness.npz_files import read_npz
from vocabench.harness.run import schema
from vocabench.harness.run.cells import Cell
from vocabench.impls.cache_folder import sha256_of_file
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.models.network import Config, Network
from vocabench.impls.spec import DTYPES, Arrays, LayerSpec, check_parameters

FORMAT, VERSION = "vocabench network", 1
_ABOUT, _ARRAYS, _WORDS, _SOURCES = "network.json", "arrays.npz", "words.txt", "sources.txt"
_BODY = "body."

_check_about = schema.record(
    {
        "format": schema.one_of(FORMAT),
        "version": schema.whole(VERSION, VERSION),
        "network": schema.text,
        "config": schema.record({}),
        "cell": schema.record({"task": schema.text, "settings": schema.record({})}),
        "data": schema.record({"dataset": schema.text, "sha256": schema.text}),
        "scores": schema.record({"split": schema.text, "perplexity": schema.number}),
        "sha256": schema.map_of(schema.text),
    }
)


@dataclass(frozen=True)
class SavedNetwork:
    """Checked contents of a folder.

    Attributes:
        config: Settings of the network.
        spec: Specification of its output layer, in the precision in which it was trained.
        params: Parameters under their canonical names; those of the layer start with "output.".
        words: Words of the output layer in order of their ids.
        cell: The cell that trained it.
        data: Name, sha256 and provenance of its data.
        scores: Its scores by quantity, among them its perplexity, and the split of the data on which it has them.
        sources: Words that it reads in order of their ids, of a network that has a vocabulary for them.
    """

    config: Config
    spec: LayerSpec
    params: Arrays = field(repr=False)
    words: Sequence[str] = field(repr=False)
    cell: Cell
    data: Mapping[str, Any]
    scores: Mapping[str, Any]
    sources: Sequence[str] = field(default=(), repr=False)

    @property
    def frameworks(self) -> list[str]:
        """The installed frameworks that can evaluate it."""
        return [name for name in registry.installed_frameworks() if self._method_in(name) is not None]

    def network(self, framework: str, device: str = "cpu") -> Network[Any]:
        """Return the network in a framework.

        The definitions ("numpy") compute in float64. A method that the framework lacks is replaced by one that
        computes the same function of the same parameters.

        Raises:
            BadInput: The framework has no such method, or cannot run on this machine.
        """
        method = self._method_in(framework)
        if method is None:
            allowed = ", ".join(self.frameworks)
            raise BadInput(f"method {self.spec.method!r} is not in {framework}: allowed: {allowed}")
        dtype = "float64" if framework == "numpy" else self.spec.dtype
        spec = self.spec.computed_by(registry.definition(method), dtype)
        network = layers.create_network(framework, spec, self.config, device)
        network.load(self.params)
        return network

    def _method_in(self, framework: str) -> str | None:
        own, available = self.spec.method, registry.methods(framework)
        return own if own in available else next((m for m in registry.same_function(own) if m in available), None)


def save(
    folder: Path,
    network: Network[Any],
    spec: LayerSpec,
    words: Sequence[str],
    cell: Cell,
    data: Mapping[str, Any],
    scores: Mapping[str, Any],
    sources: Sequence[str] = (),
) -> str:
    """Write a trained network to a new or empty folder.

    Args:
        folder: Path of the folder. Nothing is at this path before all files are complete.
        network: The network.
        spec: Specification of its output layer, with the present structure.
        words: Words of the output layer in order of their ids.
        cell, data, scores, sources: As in `SavedNetwork`.

    Returns:
        The sha256 of network.json, which covers all files.

    Raises:
        BadInput: The folder exists and is not empty, or cannot be written.
    """
    prefix, kind = "output.", KINDS[network.config.network]
    params = network.parameters()
    output = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    arrays = layer_arrays.arrays_of(spec, spec.structure, output)
    dtype = layer_arrays.stored_dtype(spec)
    arrays |= {_BODY + name: np.asarray(v, dtype) for name, v in params.items() if not name.startswith(prefix)}
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            np.savez(scratch / _ARRAYS, **arrays)  # type: ignore[arg-type]
            _write_words(scratch / _WORDS, words)
            if kind.reads_words:
                _write_words(scratch / _SOURCES, sources)
            about = {
                "format": FORMAT,
                "version": VERSION,
                "network": network.config.network,
                "config": kind.stored(network.config),
                "cell": cell.to_json(),
                "data": dict(data),
                "scores": dict(scores),
                "sha256": {name: sha256_of_file(scratch / name) for name in _files(kind)},
            }
            (scratch / _ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")
            scratch.chmod(0o755)
            sha256 = sha256_of_file(scratch / _ABOUT)
            os.rename(scratch, folder)  # fails unless the folder is new or empty
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise BadInput(f"folder {folder}: {error.strerror or error}: allowed: a new folder with free space") from None
    return sha256


def load(folder: str | Path) -> SavedNetwork:
    """Read and check the folder of a trained network.

    Raises:
        BadInput: The folder is missing, damaged, or holds something else. The message says what.
    """
    folder = Path(folder)
    if not (folder / _ABOUT).is_file():
        raise BadInput(f"folder {folder}: no {_ABOUT} in it: allowed: a folder that -s save=FOLDER has written")
    try:
        return _read(folder)
    except BadInput as error:
        raise BadInput(f"network in {folder}: {error}") from None
    except OSError as error:
        raise BadInput(f"network in {folder}: {error.strerror}: allowed: files that can be read") from None


def _files(kind: Kind) -> tuple[str, ...]:
    """Return the files whose sha256 is stored."""
    return (_ARRAYS, _WORDS, _SOURCES) if kind.reads_words else (_ARRAYS, _WORDS)


def _write_words(path: Path, words: Sequence[str]) -> None:
    path.write_text("\n".join(words), encoding="utf-8", newline="\n")


def _read(folder: Path) -> SavedNetwork:
    about, kind = _about(folder / _ABOUT)
    for name in _files(kind):
        sha256 = about["sha256"][name]
        if not (folder / name).is_file():
            raise BadInput(f"no {name} in it: allowed: the complete folder")
        if sha256_of_file(folder / name) != sha256:
            raise BadInput(f"{name} is damaged or of another network: allowed: the file with sha256 {sha256[:12]}...")
    config = kind.config(about["config"])
    arrays = read_npz(folder / _ARRAYS)
    layer_arrays.check_names(arrays, (), _BODY)
    spec, output = layer_arrays.layer_of(arrays, getattr(config, kind.width))
    cell = Cell.from_json(about["cell"])
    if cell.precision not in DTYPES:
        raise unknown("precision", cell.precision, DTYPES)
    spec = dataclasses.replace(spec, dtype=cell.precision)
    body = layer_arrays.with_prefix(_BODY, arrays)
    body = check_parameters(kind.name, config.body_shapes(spec), body, spec.storage)
    params = {**body, **{f"output.{name}": value for name, value in output.items()}}
    words = _read_words(folder / _WORDS, spec.vocab, "output layer")
    sources = _read_words(folder / _SOURCES, about["config"]["sources"], "encoder") if kind.reads_words else ()
    return SavedNetwork(config, spec, params, words, cell, about["data"], about["scores"], sources)


def _read_words(path: Path, count: int, reader: str) -> list[str]:
    words = path.read_text(encoding="utf-8").split("\n")
    if len(words) != count:
        raise BadInput(f"{path.name} has {len(words):,} words: allowed: {count:,}, as the {reader} has")
    return words


def _about(path: Path) -> tuple[dict[str, Any], Kind]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{_ABOUT}: {error}: allowed: JSON as -s save=FOLDER writes it") from None
    if wrong := _check_about(about):
        raise BadInput(f"{_ABOUT}: {wrong.lstrip('.=: ')}")
    kind = KINDS.get(about["network"])
    if kind is None:
        raise unknown("network", about["network"], KINDS)
    check = schema.record(
        {
            "cell": schema.record({"task": schema.one_of(kind.task), "settings": schema.record(kind.settings)}),
            "data": schema.record(kind.data),
            "sha256": schema.record(dict.fromkeys(_files(kind), schema.text)),
        }
    )
    if wrong := check(about):
        raise BadInput(f"{_ABOUT}: {wrong.lstrip('.=: ')}")
    return about, kind
