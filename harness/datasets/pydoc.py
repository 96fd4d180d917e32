"""pydoc: technical English from the docstrings of packages that this project installs anyway."""

from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.datasets.text.docstring_text import DocstringText

PACKAGES = (
    # Without tensorflow: half of its docstrings are generated and repeat each other.
    *("python", "numpy", "scipy", "pandas", "torch", "jax", "keras"),
    *("asv", "_pytest", "rich", "hypothesis"),
)

DATASET = TextDataset(
    description="docstrings of the standard library and of the packages this project pins, as far as installed",
    source="built here, without a network",
    origin=DocstringText("pydoc", PACKAGES, licence="the licence of each package"),
)
