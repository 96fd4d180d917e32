"""wikitext-2: 33,278 words, as usually reported."""

from vocabench.harness.datasets.text import wikitext

KIND = "text"
DESCRIPTION = "2M words of Wikipedia articles, tokenized; 33,278 different ones"
SOURCE = wikitext.source("wikitext-2")
LICENCE = wikitext.LICENCE
CORPUS = wikitext.corpus("wikitext-2", "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c")

text, is_here = CORPUS.text, CORPUS.is_here
