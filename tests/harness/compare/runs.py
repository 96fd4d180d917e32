"""Rows of runs to compare, made from given times."""

import numpy as np

from vocabench.harness.measure.stats import location, paired_ratio
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Provenance, Ratio, Row

MACHINE = {"cpu": "Some CPU", "cores": 2}


def cell(method="sohsm", *, task="timing", framework="torch", vocab=1000, **more):
    return Cell("quick", task, framework, method, vocab, 64, 128, **more)


def row(measured_cell, *measurements, status="ok", agreement=None, machine=MACHINE, message="", code=None):
    provenance = Provenance(code=code or {"dirty": False}, machine=machine, framework={"threads": "2"})
    return Row(measured_cell.key, measured_cell, status, message, measurements, agreement or {}, provenance)


def timed(baseline, own, quantity="layer_seconds", detail=None):
    """Return the measurement that a task makes of paired rounds."""
    centre = location(list(own))
    interval, ratios = paired_ratio(list(baseline), list(own))
    ratio = Ratio(interval.value, interval.low, interval.high, ratios, list(baseline))
    return Measurement(quantity, centre.value, list(own), centre.low, centre.high, ratio, detail or {})


def run(rng, factors, *, rounds=21, noise=0.015, drift=0.03, machine=1.0, framework="torch", vocab=1000, where=MACHINE):
    """Return the rows of one run.

    Args:
        factors: Time of each method as a multiple of 100 ms.
        noise: Standard deviation of the logarithm of each time.
        drift: Standard deviation of the logarithm of the machine's speed in a round, which is shared by both times.
        machine: Factor by which the machine is slower.
        where: Provenance of the machine.
    """

    def samples(factor, speed):
        return 0.1 * machine * factor * speed * np.exp(rng.normal(0, noise, rounds))

    rows = []
    for method, factor in factors.items():
        speed = np.exp(rng.normal(0, drift, rounds))
        full = factors.get("full_softmax", 1.0)
        measurement = timed(samples(full, speed), samples(factor, speed))
        rows.append(row(cell(method, framework=framework, vocab=vocab), measurement, machine=where))
    return rows


def runs(rng, factors, number=3, **more):
    """Return the rows of several runs of the same code."""
    return [stored for _ in range(number) for stored in run(rng, factors, **more)]


FACTORS = {"full_softmax": 1.0, "sohsm": 0.1, "huffman": 0.05}


def perplexity(value, *, samples=(), quantity="perplexity", **more):
    return row(cell(task="language_modelling", **more), Measurement(quantity, value, list(samples)))


def by_seed(values, **more):
    """Return rows of perplexities, one for each seed from 0."""
    return [perplexity(value, seed=seed, **more) for seed, value in enumerate(values)]


def verdicts(findings):
    return {(finding.cell.split()[2], finding.quantity): finding.verdict for finding in findings}
