"""The folder that child processes import `vocabench` from: the one that this process has imported it from."""

from pathlib import Path

import vocabench

IMPORT_ROOT = Path(vocabench.__path__[0]).absolute().parent
