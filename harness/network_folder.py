"""A trained network in a folder, for evaluation in any framework.

The folder holds

    network.json   the kind of network and its configuration, the cell that trained it, its data and its scores
    arrays.npz     the parameters under their canonical names, and the output layer as in `layer_arrays`
    words.txt      the words of the output layer in order of their ids, one a line

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
from vocabench.harness.npz_files import read_npz
from vocabench.harness.run import schema
from vocabench.harness.run.cells import Cell
from vocabench.impls.cache_folder import sha256_of_file
from vocabench.impls.errors import BadInput, unknown
from vocabench.impls.models.language_model import LanguageModel, LanguageModelConfig
from vocabench.impls.spec import DTYPES, Arrays, LayerSpec, check_parameters

FORMAT, VERSION = "vocabench network", 1
_ABOUT, _ARRAYS, _WORDS = "network.json", "arrays.npz", "words.txt"
_BODY, _TASK = "body.", "language_modelling"

_check_about = schema.record(
    {
        "format": schema.one_of(FORMAT),
        "version": schema.whole(VERSION, VERSION),
        "network": schema.text,
        "config": schema.record({"embedding": schema.whole(1), "hidden": schema.whole(1)}),
        "cell": schema.record({"task": schema.one_of(_TASK), "settings": schema.record({"steps": schema.whole(1)})}),
        "data": schema.record({"dataset": schema.text, "sha256": schema.text}),
        "scores": schema.record({"split": schema.text, "perplexity": schema.number}),
        "sha256": schema.record({_ARRAYS: schema.text, _WORDS: schema.text}),
    }
)


@dataclass(frozen=True)
class SavedNetwork:
    """Checked contents of a folder.

    Attributes:
        config: Settings of the network.
        spec: Specification of its output layer, in the precision in which it was trained.
        params: Parameters under their canonical names; those of the layer start with "output.".
        words: Words in order of their ids.
        cell: The cell that trained it.
        data: Name, sha256 and provenance of its data.
        scores: Its perplexity, and the split of the data on which it has it.
    """

    config: LanguageModelConfig
    spec: LayerSpec
    params: Arrays = field(repr=False)
    words: Sequence[str] = field(repr=False)
    cell: Cell
    data: Mapping[str, Any]
    scores: Mapping[str, Any]

    @property
    def frameworks(self) -> list[str]:
        """The installed frameworks that can evaluate it."""
        return [name for name in registry.installed_frameworks() if self._method_in(name) is not None]

    def network(self, framework: str, device: str = "cpu") -> LanguageModel:
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
    network: LanguageModel,
    spec: LayerSpec,
    words: Sequence[str],
    cell: Cell,
    data: Mapping[str, Any],
    scores: Mapping[str, Any],
) -> str:
    """Write a trained network to a new or empty folder.

    Args:
        folder: Path of the folder. Nothing is at this path before all files are complete.
        network: The network.
        spec: Specification of its output layer, with the present structure.
        words: Words in order of their ids.
        cell, data, scores: As in `SavedNetwork`.

    Returns:
        The sha256 of network.json, which covers all files.

    Raises:
        BadInput: The folder exists and is not empty, or cannot be written.
    """
    prefix = "output."
    params = network.parameters()
    output = {name.removeprefix(prefix): value for name, value in params.items() if name.startswith(prefix)}
    arrays = layer_arrays.arrays_of(spec, spec.structure, output)
    dtype = layer_arrays.stored_dtype(spec)
    arrays |= {_BODY + name: np.asarray(v, dtype) for name, v in params.items() if not name.startswith(prefix)}
    try:
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
        try:
            np.savez(scratch / _ARRAYS, **arrays)  # type: ignore[arg-type]
            (scratch / _WORDS).write_text("\n".join(words), encoding="utf-8")
            about = {
                "format": FORMAT,
                "version": VERSION,
                "network": network.config.network,
                "config": {"embedding": network.config.embedding, "hidden": network.config.hidden},
                "cell": cell.to_json(),
                "data": dict(data),
                "scores": dict(scores),
                "sha256": {name: sha256_of_file(scratch / name) for name in (_ARRAYS, _WORDS)},
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


def _read(folder: Path) -> SavedNetwork:
    about = _about(folder / _ABOUT)
    for name, sha256 in about["sha256"].items():
        if not (folder / name).is_file():
            raise BadInput(f"no {name} in it: allowed: the complete folder")
        if sha256_of_file(folder / name) != sha256:
            raise BadInput(f"{name} is damaged or of another network: allowed: the file with sha256 {sha256[:12]}...")
    config = LanguageModelConfig(**about["config"])
    arrays = read_npz(folder / _ARRAYS)
    layer_arrays.check_names(arrays, (), _BODY)
    spec, output = layer_arrays.layer_of(arrays, config.hidden)
    cell = Cell.from_json(about["cell"])
    if cell.precision not in DTYPES:
        raise unknown("precision", cell.precision, DTYPES)
    spec = dataclasses.replace(spec, dtype=cell.precision)
    body = layer_arrays.with_prefix(_BODY, arrays)
    body = check_parameters(LanguageModel.NAME, config.body_shapes(spec), body, spec.storage)
    params = {**body, **{f"output.{name}": value for name, value in output.items()}}
    words = (folder / _WORDS).read_text(encoding="utf-8").split("\n")
    if len(words) != spec.vocab:
        raise BadInput(f"{_WORDS} has {len(words):,} words: allowed: {spec.vocab:,}, as the output layer has")
    return SavedNetwork(config, spec, params, words, cell, about["data"], about["scores"])


def _about(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{_ABOUT}: {error}: allowed: JSON as -s save=FOLDER writes it") from None
    if wrong := _check_about(about):
        raise BadInput(f"{_ABOUT}: {wrong.lstrip('.=: ')}")
    if about["network"] != LanguageModelConfig.network:
        raise BadInput(f"network {about['network']!r}: allowed: {LanguageModelConfig.network}")
    return about
