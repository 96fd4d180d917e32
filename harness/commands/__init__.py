"""The commands of `vocabench`, one module each.

`COMMAND` of a module is its `Command`. These modules import little until a command runs, so that `--help` is fast.
"""
