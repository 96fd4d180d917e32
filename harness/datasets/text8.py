"""text8: the first 10^8 characters of the English Wikipedia of 2006, reduced to a-z and single spaces.

As in SOHSM (Shen et al. 2017, section 4.2), the last million characters are held out, and words that occur at least ten
times are kept, about 44 thousand. There is no test split.
"""

from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.datasets.shared.downloads import Download
from vocabench.harness.datasets.text.published import PublishedText

_URL = "http://mattmahoney.net/dc/text8.zip"

DATASET = TextDataset(
    description="17M words of the English Wikipedia of 2006, a-z only; the last million characters held out",
    source=_URL,
    origin=PublishedText(
        name="text8",
        files={"train": "text8"},
        rule="whitespace",
        licence="GFDL (Wikipedia, 2006)",
        downloads=(
            Download(_URL, "a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232", {"text8": "text8"}),
        ),
        checksums={"text8": "6e890197040d37d85beb962ae1f041ff1d9a9ca8d20c7d99c85027eebf51dca7"},
        held_out=1_000_000,
        min_count=10,
    ),
)
