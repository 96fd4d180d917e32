"""Small files under the names that the documentation's commands use, in the formats that it describes."""

import json
import shutil
from pathlib import Path

import numpy as np

from tests import ROOT
from vocabench.harness import layer_file, layers
from vocabench.harness.speech.languages import LANGUAGES

_TEXT = "the cat sat on the mat .\n" * 400
_UNITS = "a b c d e f g h i j k l"
_PAIR = {"text": "the cat sat on the mat", "summary": "cat on mat"}
_SPLITS = ("train", "valid", "test")
_EUROPARL = ("europarl-bg", "europarl-cs", "europarl-da")


def write(folder: Path) -> None:
    """Write texts, pairs, documents, a tree, a trained layer and a suite."""
    shutil.copy(ROOT / "harness" / "suites" / "quick.toml", folder / "my-suite.toml")
    (folder / "text.txt").write_text(_TEXT)
    for name in ("FOLDER", *_EUROPARL, "gigaword", "duc2004"):
        (folder / name).mkdir()
    for name in ("FOLDER", *_EUROPARL):
        for split in _SPLITS:
            (folder / name / f"{split}.txt").write_text(_TEXT)
    for name in ("FOLDER", "gigaword", "duc2004"):
        for number, split in enumerate(_SPLITS):
            pairs = [{key: f"{value} {number}" for key, value in _PAIR.items()}] * 20
            (folder / name / f"{split}.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    documents = [{"text": f"{number} {_TEXT[:60]}", "label": "cats" if number % 2 else "mats"} for number in range(80)]
    (folder / "documents.jsonl").write_text("".join(f"{json.dumps(document)}\n" for document in documents))
    (folder / "questions.txt").write_text(": seats\ncat mat sat the\n")
    (folder / "tree.json").write_text("[[0, 1], [2, [3, 4]]]")
    layer = layers.create("numpy", "full_softmax", vocab=60, dim=8)
    layer_file.save(folder / "layer.npz", layer, np.ones((200, 8)), np.arange(200) % 60)


def write_outputs(folder: Path) -> None:
    """Write outputs of systems and references."""
    sample = {"text": "a b", "reference": "a c", "references": ["a c"], "words": ["a", "b"], "log_probs": [-1.0, -2.0]}
    for name in ("ours", "theirs"):
        (folder / f"{name}.jsonl").write_text(f"{json.dumps(sample)}\n" * 3)
        (folder / f"{name}.trn").write_text("a b (one)\nc d (two)\n")
    (folder / "references.trn").write_text("a b (one)\nc e (two)\n")
    (folder / "outputs.txt").write_text("a b\nc d\n")
    (folder / "references.txt").write_text("a b\nc e\n")


def write_recordings(folder: Path) -> None:
    """Write a folder of manifests, one of Common Voice and one of the UCLA Phonetic Corpus."""
    from tests.harness.datasets import recordings  # needs soundfile

    read = folder / "speechocean762"
    records = {split: [recordings.record(f"{split}.wav", _UNITS, "en")] for split in _SPLITS}
    recordings.folder_of(read, records["train"], valid=records["valid"], test=records["test"])
    for language in LANGUAGES:
        spoken = folder / "common-voice" / language
        for number in range(20):
            recordings.sound(spoken / "clips" / f"{number}.wav", recordings.tone(0.2, hertz=300.0 + number))
        lines = ["path\tsentence", *(f"{number}.wav\t{_UNITS}" for number in range(20))]
        (spoken / "validated.tsv").write_text("\n".join(lines) + "\n")
    for language in ("abk", "ces"):
        phones = folder / "ucla" / language
        for number in range(9):
            recordings.sound(phones / "audio" / f"{language}-{number}.wav", recordings.tone(0.2, hertz=300.0 + number))
        (phones / "text.txt").write_text("".join(f"{language}-{number} {_UNITS}\n" for number in range(9)))
