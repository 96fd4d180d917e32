"""pydoc-summaries: bodies of docstrings with their first lines as summaries, from packages that are installed anyway.

PEP 257 asks for a one-line summary, an empty line, and the rest. A docstring gives a pair if:

- Its first line is followed by an empty line and more text.
- The first line is prose: no code, doctest, directive or table; at least three words of letters and at most 30 words;
  brackets and operators in at most 30 % of its pieces; a mean word length of at least 2.5 letters.
- The paragraphs of the body that pydoc would keep have at least ten words, and more than the summary.
- Neither its source nor its summary has come before. Inherited docstrings are often copied, and a copy must not be in
  another split. The order is that of the packages, their files by path, and the walk of each syntax tree.

Words are those of pydoc: lower case, numbers as <num>, no markup. The split depends on the name of the file: nine in
ten are for training, the rest half for validation and half for testing. The length of sources is not limited.
"""

from vocabench.harness.datasets import pydoc
from vocabench.harness.datasets.pairs.docstring_summaries import DocstringSummaries
from vocabench.harness.datasets.shared.dataset import PairDataset

_PACKAGES = (*pydoc.PACKAGES, "sympy", "networkx", "matplotlib", "nltk")

DATASET = PairDataset(
    description="bodies of docstrings with their first lines as summaries, from the packages of pydoc and four more",
    source="built here, without a network",
    origin=DocstringSummaries("pydoc-summaries", _PACKAGES, licence="the licence of each package"),
    may_quote=True,
)
