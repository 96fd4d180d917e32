"""Files of samples to score: plain text, JSON lines, and SCTK's `trn`."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabench.harness.datasets.text.tokenization import check_utf8
from vocabench.impls.errors import BadInput, unknown

TEXT, JSON_LINES, TRN = "text", "jsonl", "trn"
FORMATS = (TEXT, JSON_LINES, TRN)
_SUFFIXES = {".jsonl": JSON_LINES, ".trn": TRN}

_TRN_LINE = re.compile(r"(.*)\(([^()\s]+)\)\s*")
_COMMENT = ";;"


@dataclass(frozen=True)
class Sample:
    """
    Attributes:
        line: Number of its line, from 1.
        id: Its id; None if the file has no ids.
        texts: One text, or several references.
    """

    line: int
    id: str | None
    texts: tuple[str, ...]


@dataclass(frozen=True)
class Samples:
    """The samples of a file, in its order. Either all or none of them have ids, and no two the same."""

    path: Path
    entries: tuple[Sample, ...]

    @property
    def has_ids(self) -> bool:
        return self.entries[0].id is not None


def format_of(path: Path) -> str:
    """Return the format that the suffix of a file names; plain text for any other suffix."""
    return _SUFFIXES.get(path.suffix, TEXT)


def read(path: Path, text_format: str, fields: Sequence[str], *, may_be_several: bool = False) -> Samples:
    """Read the samples of a file.

    Args:
        path: Path of the file.
        text_format: One of `FORMATS`.
        fields: Fields of a JSON line that may hold the text; the first one that is there does.
        may_be_several: Whether the field may hold a list of texts.

    Raises:
        BadInput: The file has no samples, a line has another form, or an id is repeated or missing.
    """
    if text_format not in FORMATS:
        raise unknown("format", text_format, FORMATS)

    def record(number: int, line: str) -> Sample:
        content = json_object(path, number, line)
        return Sample(number, _id(path, number, content), _texts(path, number, content, fields, may_be_several))

    if text_format == TEXT:
        found = [Sample(number, None, (line,)) for number, line in lines(path)]
    elif text_format == JSON_LINES:
        found = [record(number, line) for number, line in lines(path)]
    else:
        found = [_trn(path, *each) for each in lines(path) if each[1].strip() and not each[1].startswith(_COMMENT)]
    if not found:
        raise BadInput(f"{path}: the file is empty: allowed: one sample per line")
    return _checked(Samples(path, tuple(found)))


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number, from 1, and the text of each line, which a line feed ends.

    Raises:
        BadInput: The file is not UTF-8.
    """
    check_utf8(path)
    with path.open(encoding="utf-8-sig", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            yield number, line.rstrip("\r\n")


def json_object(path: Path, number: int, line: str) -> dict[str, Any]:
    """Return the JSON object of a line.

    Raises:
        BadInput: The line is no JSON object.
    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path}, line {number:,}: {error}: allowed: one JSON object per line") from None
    if not isinstance(content, dict):
        raise BadInput(f"{path}, line {number:,}: {line[:40]!r}: allowed: one JSON object per line")
    return content


def _id(path: Path, number: int, content: dict[str, Any]) -> str | None:
    value = content.get("id")
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
        raise BadInput(f"{path}, line {number:,}: id {value!r}: allowed: text or a whole number")
    return None if value is None else str(value)


def _texts(
    path: Path, number: int, content: dict[str, Any], fields: Sequence[str], may_be_several: bool
) -> tuple[str, ...]:
    name = next((name for name in fields if name in content), None)
    if name is None:
        raise BadInput(f"{path}, line {number:,}: no field {' or '.join(fields)}: allowed: one of them in each line")
    value = content[name]
    texts = value if may_be_several and isinstance(value, list) else [value]
    if not texts or not all(isinstance(text, str) for text in texts):
        allowed = "text, or a list of texts" if may_be_several else "text"
        raise BadInput(f"{path}, line {number:,}: {name} is {json.dumps(value)[:40]}: allowed: {allowed}")
    return tuple(texts)


def _trn(path: Path, number: int, line: str) -> Sample:
    match = _TRN_LINE.fullmatch(line)
    if not match:
        raise BadInput(f"{path}, line {number:,}: {line[-40:]!r}: allowed: words and then (utterance-id)")
    return Sample(number, match[2], (match[1].strip(),))


def _checked(samples: Samples) -> Samples:
    seen: dict[str, int] = {}
    for sample in samples.entries:
        place = f"{samples.path}, line {sample.line:,}"
        if (sample.id is not None) != samples.has_ids:
            which = "no id" if sample.id is None else f"id {sample.id!r}"
            other = "others have one" if sample.id is None else "others have none"
            raise BadInput(f"{place}: {which}, but {other}: allowed: an id in each line or in none")
        if sample.id is not None and (first := seen.setdefault(sample.id, sample.line)) != sample.line:
            raise BadInput(f"{place}: id {sample.id!r} again, after line {first:,}: allowed: each id once")
    return samples


def in_order_of(references: Samples, outputs: Samples) -> list[Sample]:
    """Return the samples of `outputs` in the order of the references: by id if both files have ids, else by line.

    Raises:
        BadInput: The samples do not match one to one.
    """
    if references.has_ids != outputs.has_ids:
        with_ids, without = (references, outputs) if references.has_ids else (outputs, references)
        raise BadInput(f"{with_ids.path} has ids and {without.path} has none: allowed: both or neither")
    if not references.has_ids:
        counts = [len(each.entries) for each in (outputs, references)]
        if counts[0] != counts[1]:
            sizes = f"{outputs.path} has {counts[0]:,} samples and {references.path} {counts[1]:,}"
            raise BadInput(f"{sizes}: allowed: as many of both")
        return list(outputs.entries)
    by_id = {sample.id: sample for sample in outputs.entries}
    _check_all_in(by_id, references, outputs.path)
    _check_all_in({sample.id for sample in references.entries}, outputs, references.path)
    return [by_id[sample.id] for sample in references.entries]


def _check_all_in(ids: Container[str | None], samples: Samples, other: Path) -> None:
    missing = [sample for sample in samples.entries if sample.id not in ids]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        where = f"{samples.path}, line {missing[0].line:,}"
        raise BadInput(f"{where}: id {missing[0].id!r}{more} not in {other}: allowed: the same ids in both files")
