"""pydoc: technical English, built from the docstrings of the packages that this project installs anyway."""

from harness.datasets._pydoc import Docstrings

DESCRIPTION = "docstrings of the standard library and of the packages this project pins, as far as installed"
SOURCE = "built here, without a network"
LICENCE = "the licence of each package"
PACKAGES = (
    *("python", "numpy", "scipy", "pandas", "torch", "jax", "tensorflow", "keras"),
    *("asv", "_pytest", "rich", "hypothesis"),
)
CORPUS = Docstrings("pydoc", PACKAGES, LICENCE)

text, is_here = CORPUS.text, CORPUS.is_here
