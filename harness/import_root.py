"""The folder from which this process imports `vocabench`, so that child processes import the same code."""

from pathlib import Path

import vocabench

IMPORT_ROOT = Path(vocabench.__path__[0]).absolute().parent
