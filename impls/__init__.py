"""Output layers over large vocabularies: one definition each in NumPy, one fast form in each framework."""

if __name__ != "vocabench.impls":
    raise ImportError("impls is a part of vocabench: import vocabench.impls")

from vocabench.impls import plugins

plugins.install()
