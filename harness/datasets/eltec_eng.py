"""eltec-eng: English novels 1840-1920 from the user's own copy, a paragraph a line, with whole novels held out.

The publisher distributes single novels in XML. Users make the three files from them, so no checksum is known.
"""

from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.datasets.text.published import PublishedText

DATASET = TextDataset(
    description="10M words of English novels 1840-1920; whole novels held out",
    source="your own: VOCABENCH_DATA/eltec-eng/train.txt, valid.txt, test.txt (made from ELTeC-eng)",
    origin=PublishedText(
        name="eltec-eng",
        files={split: f"{split}.txt" for split in ("train", "valid", "test")},
        rule="english",
        licence="texts in the public domain, encoding CC BY 4.0",
        min_count=5,
    ),
)
