"""`python -m vocabench` runs the command."""

from vocabench.harness.cli import entry

if __name__ == "__main__":
    entry()
