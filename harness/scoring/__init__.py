"""Scores for the outputs of systems that were trained elsewhere, read from files."""
