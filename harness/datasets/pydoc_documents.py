"""pydoc-documents: docstrings as documents, with the module that contains them as their label.

A document is the English text of a docstring, as in pydoc, if it has at least 20 words. Its label is the name of the
module, such as numpy.linalg. Repeated documents are kept once. The split depends on the text of the document: one in
five is for testing, so the modules have documents in both splits.
"""

from vocabench.harness.datasets import pydoc
from vocabench.harness.datasets.documents.docstring_documents import DocstringDocuments
from vocabench.harness.datasets.shared.dataset import DocumentDataset

DATASET = DocumentDataset(
    description="docstrings of the packages of pydoc, labelled by their modules",
    source="built here, without a network",
    origin=DocstringDocuments("pydoc-documents", pydoc.PACKAGES, licence="the licence of each package"),
)
