"""wikitext-2: 33,278 words, as usually reported."""

from vocabench.harness.datasets.text import wikitext

DATASET = wikitext.dataset(
    "wikitext-2",
    sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
    description="2M words of Wikipedia articles, tokenized; 33,278 different ones",
)
