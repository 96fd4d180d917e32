"""The warning about a line of a results file that is not a row."""


class DamagedLine(UserWarning):
    """A line of a results file that is not a row, and is left out."""
