"""The layouts of speech corpora: manifests, Common Voice, the UCLA Phonetic Corpus."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vocabench.harness.datasets.shared import utf8_lines
from vocabench.harness.datasets.shared.dataset import SPLITS, Progress, SpeechFiles
from vocabench.harness.datasets.speech import recordings, sound_files
from vocabench.harness.datasets.speech.sound_files import Unusable
from vocabench.harness.speech import language_codes
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput, unknown

# Held out in zero-shot recognition by Liu et al. 2022, table 3.
UCLA_TEST = ("bin", "sbc", "mal", "kea", "klu", "aeb", "mak", "fin", "abk", "ace")

SPLIT_RULES = ("official", "validated")

# Parts of each language of Common Voice by the rule "validated": for testing as in Liu et al. 2022, section 3.1, which
# does not say what is for validation. Here that is half as much.
_TEST_SHARE, _MOST_TEST, _VALID_TO_TEST = 0.1, 10_000, 0.5

_LICENCE = "the user's own"
_VERSION = 1  # of the cache; to be raised when the same files would give other utterances
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
    """Return whether `name` is a path rather than the name of a dataset."""
    return "/" in name or name.endswith(".jsonl") or Path(name).exists()


def at_path(name: str, progress: Progress, splits: str = "official") -> SpeechFiles:
    """Return the speech at a path, after decoding it into the cache.

    - FILE.jsonl: a manifest. A tenth is held out for validation and a tenth for testing, by a hash of the ids.
    - A folder with any of the manifests train.jsonl, valid.jsonl and test.jsonl.
    - A folder with train.tsv, dev.tsv, test.tsv and clips/, as in Common Voice. With the splits "validated", which is
      allowed for this layout only, the list is validated.tsv: a tenth of a language's utterances, but no more than
      10,000, are for testing, half as many for validation, and the others for training, by a hash of the ids.
    - A folder with text.txt and audio/, as in the UCLA Phonetic Corpus. The ten test languages of the paper are for
      testing, and a tenth of the others for validation. If all languages are on one side, utterances are held out as
      for a single manifest.

    For the last two, a folder of such folders works too, one for each language.

    A manifest has a line of JSON for each utterance: {"audio": path relative to the manifest, "text", "language"}, and
    "phones" (separated by spaces), "speaker" and "seconds" where they are known.

    Raises:
        BadInput: The path does not exist, or a list of utterances is malformed; the message names the file and the
            line. A sound file that cannot be used is skipped, with the reason in `recordings.skipped`.
    """
    path = Path(name)
    if splits not in SPLIT_RULES:
        raise unknown("splits", splits, SPLIT_RULES)
    entries = list(_entries(path) if splits == "official" else _validated(path))
    stamps = [_stamp(entry.path) for entry in entries]
    listed = [{**asdict(entry), "path": str(entry.path)} for entry in entries]
    key = hashlib.sha256(json.dumps([_VERSION, listed, stamps]).encode()).hexdigest()[:24]
    folder = cache_folder.filled(
        cache_folder.path() / "speech" / key, lambda scratch: _decode(entries, scratch, progress)
    )
    return SpeechFiles(path.resolve().stem, folder, _LICENCE)


def _stamp(path: Path) -> tuple[int, int]:
    """Return size and modification time of a file; hashing gigabytes of sound would take too long."""
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


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
    elif folders := _folders_with(path, "train.tsv"):
        for folder in folders:
            for split, file in _COMMON_VOICE.items():
                if (folder / file).is_file():
                    yield from _tsv(folder / file, split)
    elif folders := _folders_with(path, "text.txt"):
        yield from _ucla_splits([entry for folder in folders for entry in _ucla(folder)])
    else:
        raise BadInput(
            f"folder {path}: no speech: allowed: train.jsonl, Common Voice's train.tsv with clips/, or the UCLA "
            "Phonetic Corpus's text.txt with audio/"
        )


def _validated(path: Path) -> Iterator[_Entry]:
    folders = _folders_with(path, "validated.tsv") if path.is_dir() else []
    if not folders:
        raise BadInput(f"speech {path} with splits='validated': no validated.tsv: allowed: folders of Common Voice")
    by_language: dict[str, list[_Entry]] = {}
    for folder in folders:
        for entry in _tsv(folder / "validated.tsv", "train"):
            by_language.setdefault(entry.language, []).append(entry)
    for entries in by_language.values():
        entries.sort(key=lambda entry: hashlib.sha256(entry.id.encode()).digest())
        test = min(int(_TEST_SHARE * len(entries)), _MOST_TEST)
        valid = int(_VALID_TO_TEST * test)
        for number, entry in enumerate(entries):
            yield replace(entry, split="test" if number < test else "valid" if number < test + valid else "train")


def _folders_with(folder: Path, name: str) -> list[Path]:
    """Return the folder if it contains a file of this name, otherwise the subfolders that do."""
    return [path for path in (folder,) if (path / name).is_file()] or sorted(
        path for path in folder.iterdir() if (path / name).is_file()
    )


def _held_out(entries: list[_Entry]) -> Iterator[_Entry]:
    """Assign a tenth to validation and a tenth to testing, by a hash of the ids."""
    for entry in entries:
        draw = _draw(entry)
        yield replace(entry, split="train" if draw < 0.8 else "valid" if draw < 0.9 else "test")


def _draw(entry: _Entry) -> float:
    """Return a number in [0, 1) that depends on the id only."""
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
    first_lines: dict[str, int] = {}
    for number, line in utf8_lines.numbered(path):
        where = f"{path}, line {number:,}"
        record = _record(where, line)
        audio = record["audio"]
        if audio in first_lines:
            raise BadInput(f"{where}: audio {audio!r} is also in line {first_lines[audio]:,}: allowed: each once")
        first_lines[audio] = number
        yield _Entry(
            id=audio,
            split=split,
            path=_inside(path.parent, audio, where),
            language=_language(record["language"], where),
            speaker=record.get("speaker") or "",
            text=record["text"].strip(),
            phones=record.get("phones"),
        )


def _record(where: str, line: str) -> dict[str, Any]:
    def wrong(problem: str) -> BadInput:
        return BadInput(f"{where}: {problem}: allowed: {_RECORD}")

    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        raise wrong("not JSON") from None
    if not isinstance(record, dict):
        raise wrong("not an object")
    for name in ("audio", "language"):
        if not utf8_lines.is_text(record.get(name)):
            raise wrong(f"no {name}")
    # An empty text is allowed in a manifest; its utterance is skipped.
    if record.get("text") != "" and not utf8_lines.is_text(record.get("text")):
        raise wrong("no text")
    for name in ("phones", "speaker"):
        if record.get(name) is not None and not utf8_lines.is_text(record[name]):
            raise wrong(f"{name} is not text")
    return record


def _inside(folder: Path, name: str, where: str) -> Path:
    """Return the file of this name below the folder.

    Raises:
        BadInput: The name leads outside the folder.
    """
    path = folder / name
    if "\0" in name or not path.resolve().is_relative_to(folder.resolve()):
        raise BadInput(f"{where}: audio {name!r} is outside {folder}: allowed: a path below it")
    return path


def _tsv(path: Path, split: str) -> Iterator[_Entry]:
    lines = utf8_lines.numbered(path, "\r\n")
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
            language=_language(row.get("locale") or path.resolve().parent.name, where),
            speaker=row.get("client_id", ""),
            text=row["sentence"].strip(),
        )


def _ucla(folder: Path) -> Iterator[_Entry]:
    """Yield an entry for each line: the utterance's id, which starts with its language, and its phones."""
    for number, line in utf8_lines.numbered(folder / "text.txt"):
        id, _, phones = line.partition(" ")
        where = f"{folder / 'text.txt'}, line {number:,}"
        path = _inside(folder / "audio", f"{id}.wav", where)
        language = _language(id.split("-")[0], where)
        yield _Entry(id=id, split="", path=path, language=language, phones=phones.strip())


def _language(code: str, where: str) -> str:
    """Return a language code.

    Raises:
        BadInput: There is no such language.
    """
    if not language_codes.is_known(code):
        raise BadInput(f"{where}: language {code[:60]!r}: allowed: {language_codes.ALLOWED}")
    return code
