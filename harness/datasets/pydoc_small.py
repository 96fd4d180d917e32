"""pydoc-small: the docstrings of the standard library alone, for quick runs and tests."""

from vocabench.harness.datasets.text.pydoc import Docstrings

KIND = "text"
DESCRIPTION = "docstrings of the standard library"
SOURCE = "built here, without a network"
LICENCE = "PSF License"
CORPUS = Docstrings("pydoc-small", ("python",), LICENCE)

text, is_here = CORPUS.text, CORPUS.is_here
