"""Corpora that others publish: downloaded and checked, or found in the user's own folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vocabench.harness.datasets.shared import downloads as _download
from vocabench.harness.datasets.shared import local_files
from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.shared.local_files import Progress
from vocabench.harness.datasets.shared.source import Text
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput


@dataclass(frozen=True)
class Published:
    """A corpus whose files have fixed names.

    Attributes:
        name: Of the dataset, and of its folder below `VOCABENCH_DATA`.
        files: Split to file name.
        rule: One of `text.RULES`.
        licence: Of the text.
        downloads: What brings the files; none where the user must have them.
        checksums: File name to sha256, where it is known: checked in the user's own folder too.
        held_out: So many bytes at the end of the training file are the validation split; 0 where it has its own file.
        min_count: As in `Text`.
    """

    name: str
    files: Mapping[str, str]
    rule: str
    licence: str
    downloads: tuple[Download, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    held_out: int = 0
    min_count: int = 1

    def text(self, progress: Progress) -> Text:
        folder = self._own() or self._downloaded(progress)
        files = {split: folder / name for split, name in self.files.items()}
        if self.held_out:
            size = files["train"].stat().st_size
            if size <= self.held_out:
                raise BadInput(
                    f"file {files['train']}: {size:,} bytes: allowed: more than the {self.held_out:,} held out"
                )
            files = local_files.hold_out(files["train"], {"train": size - self.held_out, "valid": size})
        return Text(self.name, files, self.rule, self.licence, self.min_count)

    def is_here(self) -> bool:
        own = local_files.local_folder(self.name)
        return bool(own and self._has_all(own)) or cache_folder.is_whole(self._cached())

    def _own(self) -> Path | None:
        """The user's folder, if it holds the files themselves and not just the archive they come in."""
        folder = local_files.local_folder(self.name)
        if folder is None or not self._has_all(folder):
            return None
        for name, sha256 in self.checksums.items():
            _download.check(folder / name, sha256)
        return folder

    def _has_all(self, folder: Path) -> bool:
        return all((folder / name).is_file() for name in self.files.values())

    def _cached(self) -> Path:
        return cache_folder.path() / "texts" / f"{self.name}-{''.join(d.sha256[:8] for d in self.downloads)}"

    def _downloaded(self, progress: Progress) -> Path:
        if not self.downloads:
            raise BadInput(
                f"dataset {self.name!r} is not downloaded: allowed: VOCABENCH_DATA=FOLDER, with "
                f"{', '.join(f'{self.name}/{name}' for name in self.files.values())} in it"
            )

        def fetch(folder: Path) -> None:
            for download in self.downloads:
                download.into(folder, progress, local=local_files.local_folder(self.name))

        return cache_folder.filled(self._cached(), fetch)
