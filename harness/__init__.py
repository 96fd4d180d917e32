"""Measures, checks, stores and prints; it imports no framework."""

if __name__ != "vocabench.harness":
    raise ImportError("harness is a part of vocabench: import vocabench.harness")
