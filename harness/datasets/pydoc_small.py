"""pydoc-small: docstrings of the standard library alone, for quick runs and tests."""

from vocabench.harness.datasets.shared.dataset import TextDataset
from vocabench.harness.datasets.text.docstring_text import DocstringText

DATASET = TextDataset(
    description="docstrings of the standard library",
    source="built here, without a network",
    origin=DocstringText("pydoc-small", ("python",), licence="PSF License"),
)
