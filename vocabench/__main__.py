"""Run the command with `python -m vocabench`."""

from vocabench.harness.cli import entry

if __name__ == "__main__":
    entry()
