"""Rows of runs to be compared, made from given times, and what was found by comparing."""

import dataclasses

import numpy as np

from vocabench.harness.measure.stats import location, paired_ratio
from vocabench.harness.quantities import Measurement
from vocabench.harness.run.cells import Cell

MACHINE = {"cpu": "Some CPU", "cores": 2}


def cell(method="sohsm", *, task="timing", framework="torch", vocab=1000, **more):
    return Cell("quick", task, framework, method, vocab, 64, 128, **more)


def row(of, *measurements, status="ok", agreement=None, machine=MACHINE, message=""):
    return {
        "key": of.key,
        "cell": of.to_json(),
        "status": status,
        "message": message,
        "measurements": [each.to_json() for each in measurements],
        "agreement": agreement or {},
        "provenance": {"machine": machine, "framework": {"threads": "2"}, "code": {"dirty": False}},
    }


def timed(baseline, own, quantity="layer_seconds", detail=None):
    """What a task keeps of paired rounds."""
    centre = location(list(own))
    ratio, ratios = paired_ratio(list(baseline), list(own))
    found = {**dataclasses.asdict(ratio), "samples": ratios, "baseline_samples": list(baseline)}
    return Measurement(quantity, centre.value, list(own), centre.low, centre.high, found, detail or {})


def run(rng, factors, *, rounds=21, noise=0.015, drift=0.03, machine=1.0, framework="torch", vocab=1000, where=MACHINE):
    """Rows of one run: full softmax at 100 ms, and others `factors` times as long; a machine `machine` times slower,
    which drifts, for both of a round alike."""

    def samples(factor, speed):
        return 0.1 * machine * factor * speed * np.exp(rng.normal(0, noise, rounds))

    rows = []
    for method, factor in factors.items():
        speed = np.exp(rng.normal(0, drift, rounds))
        full = factors.get("full_softmax", 1.0)
        measurement = timed(samples(full, speed), samples(factor, speed))
        rows.append(row(cell(method, framework=framework, vocab=vocab), measurement, machine=where))
    return rows


FACTORS = {"full_softmax": 1.0, "sohsm": 0.1, "huffman": 0.05}


def perplexity(value, *, samples=(), quantity="perplexity", **more):
    return row(cell(task="language_modelling", **more), Measurement(quantity, value, list(samples)))


def verdicts(found):
    return {(each.cell.split()[2], each.quantity): each.verdict for each in found}
