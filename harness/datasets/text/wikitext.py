"""wikitext: Wikipedia articles, tokenized and with rare words as <unk> already (Merity et al. 2016).

Words are taken as they stand and every line, empty ones too, ends with <eos>. The publisher's own server is gone; the
checksums, those of the same archives, hold the author's mirror to them.
"""

from __future__ import annotations

from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.text.published import Published

LICENCE = "CC BY-SA"


def source(name: str) -> str:
    return f"https://wikitext.smerity.com/{name}-v1.zip"


def corpus(name: str, sha256: str) -> Published:
    """The archive `name`-v1.zip with its three splits."""
    files = {split: f"wiki.{split}.tokens" for split in ("train", "valid", "test")}
    members = {f"{name}/{file}": file for file in files.values()}
    downloads = (Download(source(name), sha256, members),)
    return Published(name=name, files=files, rule="lines", licence=LICENCE, downloads=downloads)
