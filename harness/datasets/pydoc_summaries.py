"""pydoc-summaries: pairs of a docstring's body and its first line, from packages that this project installs anyway.

PEP 257 asks for a summary in one line, then an empty line, then all else: the first line is the summary, the body the
source. A docstring gives a pair where all of this holds:

- Its first line is followed by an empty one, and by more text.
- The first line is prose: no code, doctest, directive or table; three words of letters or more; 30 words or fewer;
  brackets and operators in no more than three pieces of ten; words of 2.5 letters or more on average.
- Of the body, the paragraphs that pydoc would keep, joined, have ten words or more, and more than the summary.
- Neither its source nor its summary has come before, in the order of the packages below, their files by path, and the
  docstrings in each as the syntax tree is walked: inherited docstrings are often copied, and must not be in two splits.

Words are pydoc's: lower case, numbers as <num>, no markup. The split of a pair hangs on its file's name, as in pydoc:
nine files in ten are for training, the rest half for validation and half for testing. A source may be as long as it is.
"""

from vocabench.harness.datasets import pydoc
from vocabench.harness.datasets.pairs.pydoc import Summaries

KIND = "pairs"
DESCRIPTION = "bodies of docstrings with their first lines as summaries, from the packages of pydoc and four more"
SOURCE = "built here, without a network"
LICENCE = "the licence of each package"
MAY_QUOTE = True
PACKAGES = (*pydoc.PACKAGES, "sympy", "networkx", "matplotlib", "nltk")
CORPUS = Summaries("pydoc-summaries", PACKAGES, LICENCE)

pairs, is_here = CORPUS.pairs, CORPUS.is_here
