"""wikitext-103: Wikipedia articles, tokenized and with rare words as <unk> already (Merity et al. 2016).

Words are taken as they stand and every line, empty ones too, ends with <eos>: 267,735 words, as usually reported. The
publisher's own server is gone; the checksum, that of the same archive, holds the author's mirror to it.
"""

from harness.datasets._download import Download
from harness.datasets._published import Published

DESCRIPTION = "103M words of Wikipedia articles, tokenized; 267,735 different ones"
SOURCE = "https://wikitext.smerity.com/wikitext-103-v1.zip"
LICENCE = "CC BY-SA"
CORPUS = Published(
    name="wikitext-103",
    files={split: f"wiki.{split}.tokens" for split in ("train", "valid", "test")},
    rule="lines",
    licence=LICENCE,
    downloads=(
        Download(
            SOURCE,
            "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            {f"wikitext-103/wiki.{split}.tokens": f"wiki.{split}.tokens" for split in ("train", "valid", "test")},
        ),
    ),
)

text, is_here = CORPUS.text, CORPUS.is_here
