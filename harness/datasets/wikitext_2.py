"""wikitext-2: Wikipedia articles, tokenized and with rare words as <unk> already (Merity et al. 2016).

Words are taken as they stand and every line, empty ones too, ends with <eos>: 33,278 words, as usually reported. The
publisher's own server is gone; the checksum, that of the same archive, holds the author's mirror to it.
"""

from harness.datasets._download import Download
from harness.datasets._published import Published

DESCRIPTION = "2M words of Wikipedia articles, tokenized; 33,278 different ones"
SOURCE = "https://wikitext.smerity.com/wikitext-2-v1.zip"
LICENCE = "CC BY-SA"
CORPUS = Published(
    name="wikitext-2",
    files={split: f"wiki.{split}.tokens" for split in ("train", "valid", "test")},
    rule="lines",
    licence=LICENCE,
    downloads=(
        Download(
            SOURCE,
            "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
            {f"wikitext-2/wiki.{split}.tokens": f"wiki.{split}.tokens" for split in ("train", "valid", "test")},
        ),
    ),
)

text, is_here = CORPUS.text, CORPUS.is_here
