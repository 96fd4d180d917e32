"""wikitext-103: 267,735 words, as usually reported."""

from vocabench.harness.datasets.text import wikitext

DATASET = wikitext.dataset(
    "wikitext-103",
    sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
    description="103M words of Wikipedia articles, tokenized; 267,735 different ones",
)
