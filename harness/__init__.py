"""Checks, measures, stores and reports. No module here imports a framework."""

if __name__ != "vocabench.harness":
    raise ImportError("harness is a part of vocabench: import vocabench.harness")
