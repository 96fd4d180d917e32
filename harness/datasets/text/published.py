"""Published corpora, downloaded or in the user's own folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from vocabench.harness.datasets.shared import checksums
from vocabench.harness.datasets.shared.dataset import Progress, TextFiles
from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.text import splitting
from vocabench.impls import cache_folder
from vocabench.impls.errors import BadInput, Unsupported


def user_folder(name: str) -> Path | None:
    """Return the folder of a dataset below `VOCABENCH_DATA`, or None if there is none."""
    data = os.environ.get("VOCABENCH_DATA")
    folder = Path(data) / name if data else None
    return folder if folder and folder.is_dir() else None


@dataclass(frozen=True)
class PublishedText:
    """A corpus whose files have fixed names.

    Attributes:
        name: Name of the dataset, and of its folder below `VOCABENCH_DATA`.
        files: File name by split.
        rule: Tokenization, a key of `tokenization.RULES`.
        licence: Licence of the text.
        downloads: Downloads that contain the files; empty if users must provide them.
        checksums: Known sha256 by file name; also checked in the user's own folder.
        held_out: Bytes at the end of the training file that are the validation split; 0 if that has its own file.
        min_count: See `TextFiles`.
    """

    name: str
    files: Mapping[str, str]
    rule: str
    licence: str
    downloads: tuple[Download, ...] = ()
    checksums: Mapping[str, str] = field(default_factory=dict)
    held_out: int = 0
    min_count: int = 1

    def find(self, progress: Progress) -> TextFiles:
        """Return the files; download them first if they are not here."""
        folder = self._checked_user_folder() or self._downloaded(progress)
        files = {split: folder / name for split, name in self.files.items()}
        if self.held_out:
            size = files["train"].stat().st_size
            if size <= self.held_out:
                raise BadInput(
                    f"file {files['train']}: {size:,} bytes: allowed: more than the {self.held_out:,} held out"
                )
            files = splitting.split(files["train"], {"train": size - self.held_out, "valid": size})
        return TextFiles(self.name, files, self.rule, self.licence, self.min_count)

    def is_here(self) -> bool:
        """Return whether the files are in the user's folder or in the cache."""
        folder = user_folder(self.name)
        return bool(folder and self._is_complete(folder)) or cache_folder.is_whole(self._cached())

    def _checked_user_folder(self) -> Path | None:
        """Return the user's folder if it contains the files themselves, and not only an archive of them."""
        folder = user_folder(self.name)
        if folder is None or not self._is_complete(folder):
            return None
        for name, sha256 in self.checksums.items():
            checksums.check(folder / name, sha256)
        return folder

    def _is_complete(self, folder: Path) -> bool:
        return all((folder / name).is_file() for name in self.files.values())

    def _cached(self) -> Path:
        return cache_folder.path() / "texts" / f"{self.name}-{''.join(d.sha256[:8] for d in self.downloads)}"

    def _downloaded(self, progress: Progress) -> Path:
        if not self.downloads:
            raise Unsupported(
                f"dataset {self.name!r} is not downloaded: allowed: VOCABENCH_DATA=FOLDER, with "
                f"{', '.join(f'{self.name}/{name}' for name in self.files.values())} in it"
            )

        def fetch(folder: Path) -> None:
            for download in self.downloads:
                download.into(folder, progress, local=user_folder(self.name))

        return cache_folder.filled(self._cached(), fetch)
