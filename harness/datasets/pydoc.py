"""pydoc: technical English, built from the docstrings of the packages that this project installs anyway."""

from vocabench.harness.datasets.text.pydoc import Docstrings

KIND = "text"
DESCRIPTION = "docstrings of the standard library and of the packages this project pins, as far as installed"
SOURCE = "built here, without a network"
LICENCE = "the licence of each package"
PACKAGES = (
    # Without tensorflow, half of whose docstrings are generated and repeat one another.
    *("python", "numpy", "scipy", "pandas", "torch", "jax", "keras"),
    *("asv", "_pytest", "rich", "hypothesis"),
)
CORPUS = Docstrings("pydoc", PACKAGES, LICENCE)

text, is_here = CORPUS.text, CORPUS.is_here
