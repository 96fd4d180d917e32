"""Benchmarks for asv: they look up figures in rows that the harness measures once per commit and task."""
