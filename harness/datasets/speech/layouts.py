"""The layouts that speech corpora come in: manifests, Common Voice, the UCLA Phonetic Corpus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vocabench.harness.datasets.shared import record_lines
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.shared.source import SPLITS, Recorded
from vocabench.harness.datasets.speech import recordings, sound_files
from vocabench.harness.datasets.speech.sound_files import Unusable
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput

# Held out in zero-shot recognition by Liu et al. 2022, table 3.
UCLA_TEST = ("bin", "sbc", "mal", "kea", "klu", "aeb", "mak", "fin", "abk", "ace")

_LICENCE = "the user's own"
_FORMAT = 1  # of the cache: raised when the same files would give other utterances
_COMMON_VOICE = {"train": "train.tsv", "valid": "dev.tsv", "test": "test.tsv"}
_RECORD = '{"audio": PATH, "text": TEXT, "language": CODE}, and phones, speaker and seconds where they are known'


@dataclass(frozen=True)
class _Entry:
    """An utterance as a corpus lists it."""

    id: str
    split: str
    path: Path
    language: str
    speaker: str = ""
    text: str = ""
    phones: str | None = None


def is_path(name: str) -> bool:
    return "/" in name or name.endswith(".jsonl") or Path(name).exists()


def own(name: str, progress: Progress) -> Recorded:
    """The speech at a path, decoded into the cache unless it has been.

    - FILE.jsonl: a manifest. A tenth of it is held out for validation and as much for testing, by a hash of the ids.
    - A folder with the manifests there are of train.jsonl, valid.jsonl and test.jsonl.
    - A folder with train.tsv, dev.tsv, test.tsv and clips/, as Common Voice has them.
    - A folder with text.txt and audio/, as the UCLA Phonetic Corpus has them: the ten languages that the paper tests on
      are for testing, a tenth of the others for validation; where all are on one side, as of a single manifest.

    Of the last two a folder of such folders does as well, one for each language.

    A manifest has a line of JSON an utterance: {"audio": a path relative to the manifest, "text", "language"}, and
    "phones" (with spaces between), "speaker" and "seconds" where they are known.

    Raises:
        BadInput: Nothing is there, or a list of utterances is malformed; with file and line. What is wrong with a sound
            file itself is a reason to skip it, in `recordings.skipped`.
    """
    path = Path(name)
    entries = list(_entries(path))
    stamps = [_stamp(entry.path) for entry in entries]
    listed = [{**asdict(entry), "path": str(entry.path)} for entry in entries]
    key = hashlib.sha256(json.dumps([_FORMAT, listed, stamps]).encode()).hexdigest()[:24]
    folder = cache_folder.filled(
        cache_folder.path() / "speech" / key, lambda scratch: _decode(entries, scratch, progress)
    )
    return Recorded(path.resolve().stem, folder, _LICENCE)


def _stamp(path: Path) -> tuple[int, int]:
    """What changes with a file: reading gigabytes of sound to find that nothing did would take too long."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _decode(entries: list[_Entry], folder: Path, progress: Progress) -> None:
    with recordings.Writer(folder) as writer:
        for number, entry in enumerate(entries):
            if number % 500 == 0:
                progress(f"decoding {number:,} of {len(entries):,} utterances")
            try:
                if not entry.text and not entry.phones:
                    raise Unusable("no transcript")
                samples_S = sound_files.read(entry.path)
            except Unusable as reason:
                writer.skip(entry.id, reason)
                continue
            writer.add(samples_S, **{name: value for name, value in vars(entry).items() if name != "path"})


def _entries(path: Path) -> Iterator[_Entry]:
    if path.is_file():
        yield from _held_out(list(_manifest(path, "")))
    elif not path.is_dir():
        raise BadInput(f"speech {path}: no such file or folder: allowed: a manifest, or a folder of a known layout")
    elif any((path / f"{split}.jsonl").is_file() for split in SPLITS):
        for split in SPLITS:
            if (path / f"{split}.jsonl").is_file():
                yield from _manifest(path / f"{split}.jsonl", split)
    elif folders := _with(path, "train.tsv"):
        for folder in folders:
            for split, file in _COMMON_VOICE.items():
                if (folder / file).is_file():
                    yield from _tsv(folder / file, split)
    elif folders := _with(path, "text.txt"):
        yield from _ucla_splits([entry for folder in folders for entry in _ucla(folder)])
    else:
        raise BadInput(
            f"folder {path}: no speech: allowed: train.jsonl, Common Voice's train.tsv with clips/, or the UCLA "
            "Phonetic Corpus's text.txt with audio/"
        )


def _with(folder: Path, name: str) -> list[Path]:
    """The folder, if it holds a file of this name; or else those in it that do."""
    return [each for each in (folder,) if (each / name).is_file()] or sorted(
        each for each in folder.iterdir() if (each / name).is_file()
    )


def _held_out(entries: list[_Entry]) -> Iterator[_Entry]:
    """A tenth for validation and a tenth for testing, by a hash of the ids."""
    for entry in entries:
        draw = _draw(entry)
        yield replace(entry, split="train" if draw < 0.8 else "valid" if draw < 0.9 else "test")


def _draw(entry: _Entry) -> float:
    """In [0, 1), by a hash of its id."""
    return hashlib.sha256(entry.id.encode()).digest()[0] / 256


def _ucla_splits(entries: list[_Entry]) -> Iterator[_Entry]:
    sides = {entry.language in UCLA_TEST for entry in entries}
    if len(sides) == 1:
        yield from _held_out(entries)
        return
    for entry in entries:
        if entry.language in UCLA_TEST:
            yield replace(entry, split="test")
        else:
            yield replace(entry, split="train" if _draw(entry) < 0.9 else "valid")


def _manifest(path: Path, split: str) -> Iterator[_Entry]:
    seen: dict[str, int] = {}
    for number, line in record_lines.numbered(path):
        where = f"{path}, line {number:,}"
        record = _record(where, line)
        audio = record["audio"]
        if audio in seen:
            raise BadInput(f"{where}: audio {audio!r} stands in line {seen[audio]:,} too: allowed: each once")
        seen[audio] = number
        yield _Entry(
            id=audio,
            split=split,
            path=_inside(path.parent, audio, where),
            language=record["language"],
            speaker=record.get("speaker") or "",
            text=record["text"].strip(),
            phones=record.get("phones"),
        )


def _record(where: str, line: str) -> dict[str, Any]:
    def wrong(what: str) -> BadInput:
        return BadInput(f"{where}: {what}: allowed: {_RECORD}")

    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong("no JSON") from None
    if not isinstance(record, dict):
        raise wrong("no object")
    for name in ("audio", "language"):
        if not record_lines.is_text(record.get(name)):
            raise wrong(f"no {name}")
    # An empty text is no mistake of the list: its utterance is skipped.
    if record.get("text") != "" and not record_lines.is_text(record.get("text")):
        raise wrong("no text")
    for name in ("phones", "speaker"):
        if record.get(name) is not None and not record_lines.is_text(record[name]):
            raise wrong(f"{name} is no text")
    return record


def _inside(folder: Path, name: str, where: str) -> Path:
    """The file of this name below the folder."""
    path = folder / name
    if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise BadInput(f"{where}: audio {name!r} lies outside of {folder}: allowed: a path below it")
    return path


def _tsv(path: Path, split: str) -> Iterator[_Entry]:
    lines = record_lines.numbered(path, "\r\n")
    columns = next(lines, (1, ""))[1].split("\t")
    for name in ("path", "sentence"):
        if name not in columns:
            raise BadInput(f"{path}, line 1: no column {name!r}: allowed: path, sentence, and client_id and locale")
    for number, line in lines:
        values = line.split("\t")
        where = f"{path}, line {number:,}"
        if len(values) != len(columns):
            raise BadInput(f"{where}: {len(values)} columns: allowed: {len(columns)}, as in line 1")
        row = dict(zip(columns, values, strict=True))
        yield _Entry(
            id=row["path"],
            split=split,
            path=_inside(path.parent / "clips", row["path"], where),
            language=row.get("locale") or path.resolve().parent.name,
            speaker=row.get("client_id", ""),
            text=row["sentence"].strip(),
        )


def _ucla(folder: Path) -> Iterator[_Entry]:
    """Lines of an utterance's id, which begins with its language, and its phones."""
    for number, line in record_lines.numbered(folder / "text.txt"):
        id, _, phones = line.partition(" ")
        path = _inside(folder / "audio", f"{id}.wav", f"{folder / 'text.txt'}, line {number:,}")
        yield _Entry(id=id, split="", path=path, language=id.split("-")[0], phones=phones.strip())
