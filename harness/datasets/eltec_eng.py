"""eltec-eng: English novels 1840-1920, whole novels held out; the user's own copy, a paragraph a line.

The publisher gives out single novels in XML; the three files are made from them, so there is no checksum to hold them
against.
"""

from vocabench.harness.datasets.text.published import Published

KIND = "text"
DESCRIPTION = "10M words of English novels 1840-1920; whole novels held out"
SOURCE = "your own: VOCABENCH_DATA/eltec-eng/train.txt, valid.txt, test.txt (made from ELTeC-eng)"
LICENCE = "texts in the public domain, encoding CC BY 4.0"
CORPUS = Published(
    name="eltec-eng",
    files={split: f"{split}.txt" for split in ("train", "valid", "test")},
    rule="english",
    licence=LICENCE,
    min_count=5,
)

text, is_here = CORPUS.text, CORPUS.is_here
