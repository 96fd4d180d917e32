"""WikiText: Wikipedia articles, tokenized and with rare words as <unk> (Merity et al. 2016).

Words are separated by white space, and every line, also an empty one, ends with <eos>. The publisher's server is gone;
the archives come from the author's mirror and are checked against the original checksums.
"""

from __future__ import annotations

from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.text.published import PublishedText


def dataset(name: str, sha256: str, description: str) -> TextDataset:
    """Return the dataset of the archive `name`-v1.zip, which contains three splits."""
    url = f"https://wikitext.smerity.com/{name}-v1.zip"
    files = {split: f"wiki.{split}.tokens" for split in ("train", "valid", "test")}
    members = {f"{name}/{file}": file for file in files.values()}
    downloads = (Download(url, sha256, members),)
    return TextDataset(
        description=description,
        source=url,
        origin=PublishedText(name=name, files=files, rule="lines", licence="CC BY-SA", downloads=downloads),
    )
