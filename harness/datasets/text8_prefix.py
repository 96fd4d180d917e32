"""text8-prefix: a prefix of text8 from the user's own file, with the last million characters held out.

The prefix may have any length, so no checksum is known. It is never downloaded.
"""

from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.datasets.text.published import PublishedText

DATASET = TextDataset(
    description="the beginning of text8, as long as it is here; the last million characters held out",
    source="your own: VOCABENCH_DATA/text8-prefix/text8.prefix",
    origin=PublishedText(
        name="text8-prefix",
        files={"train": "text8.prefix"},
        rule="whitespace",
        licence="GFDL (Wikipedia, 2006)",
        held_out=1_000_000,
        min_count=3,
    ),
)
