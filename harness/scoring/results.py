"""The result of scoring a system, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vocabench.harness.measure.stats import Interval
from vocabench.harness.metrics.bootstrap import Difference


@dataclass(frozen=True)
class Score:
    """
    Attributes:
        name: Name of the score.
        interval: Score of the system.
        other: Score of the system that it is compared with.
        difference: Difference to that system, with its p value, where the paired test applies.
        percent: Whether the text shows the score in percent.
    """

    name: str
    interval: Interval
    other: Interval | None = None
    difference: Difference | None = None
    percent: bool = False


@dataclass(frozen=True)
class Result:
    """
    Attributes:
        metric: Name of the metric.
        signature: Everything that the scores depend on apart from the files.
        outputs: Path of the system's outputs.
        against: Path of the outputs of a second system.
        sample: What one sample of the bootstrap is, such as "utterance".
        counts: Numbers of samples and of what they consist of.
        other_counts: The same for the second system.
        scores: Scores with their intervals.
        resamples, seed: Settings of the bootstrap.
    """

    metric: str
    signature: str
    outputs: str
    sample: str
    counts: Mapping[str, int]
    scores: Sequence[Score]
    resamples: int
    seed: int
    against: str | None = None
    other_counts: Mapping[str, int] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the result as a JSON object."""
        content: dict[str, Any] = {
            "metric": self.metric,
            "signature": self.signature,
            "outputs": self.outputs,
            "counts": dict(self.counts),
            "scores": {score.name: _json_of(score.interval) for score in self.scores},
            "bootstrap": {"samples": f"{self.sample}s", "resamples": self.resamples, "seed": self.seed, "level": 0.95},
        }
        if self.against is not None:
            content["against"] = {
                "outputs": self.against,
                "counts": dict(self.other_counts),
                "scores": {score.name: _json_of(score.other) for score in self.scores if score.other},
                "differences": {
                    score.name: _json_of(score.difference.interval) | {"p_value": score.difference.p_value}
                    for score in self.scores
                    if score.difference
                },
            }
        return content

    def as_text(self) -> str:
        """Return the result as lines of text."""
        lines = [self.signature, f"{self.outputs}: {_counted(self.counts)}"]
        if self.against is not None:
            lines.append(f"{self.against}: {_counted(self.other_counts)}")
        width = max(len(score.name) for score in self.scores)
        lines += [f"{score.name:<{width}}  {_shown(score)}" for score in self.scores]
        return "\n".join(
            [
                *lines,
                f"95 % intervals from {self.resamples:,} bootstrap resamples of the {self.sample}s, seed {self.seed}",
            ]
        )


def _json_of(interval: Interval) -> dict[str, float]:
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items())


def _shown(score: Score) -> str:
    def text(interval: Interval) -> str:
        if score.percent:
            value, low, high = (f"{100 * each:.2f}" for each in (interval.value, interval.low, interval.high))
            return f"{value} % [{low}, {high}]"
        digits = 5 if abs(interval.value) < 1 else 4
        return "{} [{}, {}]".format(*(f"{each:.{digits}f}" for each in (interval.value, interval.low, interval.high)))

    parts = [text(score.interval)]
    if score.other:
        parts.append(f"against {text(score.other)}")
    if score.difference:
        parts.append(f"difference {text(score.difference.interval)}, p = {score.difference.p_value:.4f}")
    return "; ".join(parts)
