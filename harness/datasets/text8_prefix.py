"""text8-prefix: as much of text8 as the user has in a file of that name, the last million characters held out.

Any length will do, so there is no checksum to hold it against, and it is never downloaded.
"""

from vocabench.harness.datasets.text.published import Published

KIND = "text"
DESCRIPTION = "the beginning of text8, as long as it is here; the last million characters held out"
SOURCE = "your own: VOCABENCH_DATA/text8-prefix/text8.prefix"
LICENCE = "GFDL (Wikipedia, 2006)"
CORPUS = Published(
    name="text8-prefix",
    files={"train": "text8.prefix"},
    rule="stream",
    licence=LICENCE,
    held_out=1_000_000,
    min_count=3,
)

text, is_here = CORPUS.text, CORPUS.is_here
