"""Scores of the outputs of one system, or of two systems and their paired difference, from files."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vocabench.harness.measure.stats import Interval
from vocabench.harness.metrics import error_rate, perplexity
from vocabench.harness.scoring import log_probabilities, samples
from vocabench.harness.scoring.error_rates import ErrorRate, Transcript
from vocabench.harness.scoring.results import Result, Score
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.metrics.rouge import Rouge


@dataclass(frozen=True)
class Request:
    """What to score, apart from the rules of a metric.

    Attributes:
        outputs: File of the system's outputs.
        references: Files of references; several hold further references of the same samples.
        against: File of the outputs of a second system.
        text_format: Format of all files; None for that which the suffix of each names.
        output_fields, reference_fields: Fields of JSON lines that may hold an output or a reference.
        resamples, seed: Settings of the bootstrap.
    """

    outputs: Path
    references: tuple[Path, ...] = ()
    against: Path | None = None
    text_format: str | None = None
    output_fields: tuple[str, ...] = ("text",)
    reference_fields: tuple[str, ...] = ("text",)
    resamples: int = 1000
    seed: int = 0

    def format_of(self, path: Path) -> str:
        return self.text_format or samples.format_of(path)

    @property
    def systems(self) -> list[Path]:
        """The files of outputs of one or two systems."""
        return [self.outputs] if self.against is None else [self.outputs, self.against]


def error_rates(request: Request, rate: ErrorRate) -> Result:
    """Compute an error rate.

    Raises:
        BadInput: A file is invalid, or the outputs do not match the references.
    """
    (path,) = request.references
    references = samples.read(path, request.format_of(path), request.reference_fields)
    transcripts = _transcripts(references, request.format_of(path))
    counts = [
        rate.per_utterance(transcripts, _transcripts(_outputs(system, references, request), request.format_of(system)))
        for system in request.systems
    ]
    settings = (request.resamples, request.seed)
    intervals = [error_rate.aggregate(counts_U4, *settings) for counts_U4 in counts]
    difference = (
        error_rate.compare(counts[0], counts[1], *settings, lengths_may_differ=True) if len(counts) > 1 else None
    )
    symbols = {"wer": "words", "cer": "characters", "per": "phones"}[rate.metric]
    return _result(
        request,
        rate.metric,
        rate.signature,
        "utterance",
        [_error_counts(counts_U4, symbols) for counts_U4 in counts],
        [Score(rate.metric, intervals[0], *intervals[1:], difference=difference, percent=True)],
    )


def rouge_scores(request: Request, rule: Rouge) -> Result:
    """Compute ROUGE-1, ROUGE-2 and ROUGE-L.

    Raises:
        BadInput: A file is invalid, or the outputs do not match the references.
    """
    from vocabench.harness.metrics import rouge  # imports NLTK, which takes a second

    first, *further = [
        samples.read(path, _without_notation(request, path), request.reference_fields, may_be_several=True)
        for path in request.references
    ]
    aligned = [first.entries, *(samples.in_order_of(first, each) for each in further)]
    references = [[text for sample in group for text in sample.texts] for group in zip(*aligned, strict=True)]
    values = []
    for system in request.systems:
        _without_notation(request, system)
        summaries = [sample.texts[0] for sample in _outputs(system, first, request).entries]
        values.append(rule.per_sample(summaries, references))
    settings = (request.resamples, request.seed)
    means = [rouge.aggregate(values_SMQ, *settings) for values_SMQ in values]
    differences = rouge.compare(values[0], values[1], *settings) if len(values) > 1 else None
    scores = [
        Score(
            f"{measure}_{quantity}",
            *(mean[measure][quantity] for mean in means),
            difference=differences[measure][quantity] if differences else None,
        )
        for measure in rouge.MEASURES
        for quantity in rouge.QUANTITIES
    ]
    counted = {"samples": len(references), "references": sum(map(len, references))}
    return _result(request, "rouge", rule.signature, "sample", [counted] * len(values), scores)


def perplexities(request: Request, field: str, base: str) -> Result:
    """Compute the perplexity of token log-probabilities, and its logarithm in bits.

    Args:
        request: The files.
        field: Field of JSON lines that holds the log-probabilities of a sentence.
        base: Base of the logarithms in the files, one of `log_probabilities.BASES`.

    Raises:
        BadInput: A file is invalid, or the sentences of two files differ in number or length.
    """
    read = [log_probabilities.read(path, request.format_of(path), field, base) for path in request.systems]
    scores = [perplexity.SentenceScores.of(sentences) for sentences in read]
    settings = (request.resamples, request.seed)
    nats = [perplexity.nats_per_token(each, *settings) for each in scores]
    difference = perplexity.compare(scores[0], scores[1], *settings) if len(scores) > 1 else None
    if difference:
        difference = dataclasses.replace(difference, interval=_scaled(difference.interval, 1 / math.log(2)))
    counts = [{"sentences": len(each.tokens_S), "tokens": int(each.tokens_S.sum())} for each in scores]
    return _result(
        request,
        "perplexity",
        f"perplexity|log:{base}|vocabench:{_version()}",
        "sentence",
        counts,
        [
            Score(
                "perplexity", *(Interval(*map(float, np.exp([e.value, e.low, e.high]))) for e in nats), difference=None
            ),
            Score("bits_per_token", *(_scaled(each, 1 / math.log(2)) for each in nats), difference=difference),
        ],
    )


def _result(
    request: Request,
    metric: str,
    signature: str,
    sample: str,
    counts: Sequence[dict[str, int]],
    scores: Sequence[Score],
) -> Result:
    against = None if request.against is None else str(request.against)
    return Result(
        metric,
        signature,
        str(request.outputs),
        sample,
        counts[0],
        scores,
        request.resamples,
        request.seed,
        against,
        counts[1] if len(counts) > 1 else {},
    )


def _outputs(path: Path, references: samples.Samples, request: Request) -> samples.Samples:
    """Return the outputs of a system in the order of the references."""
    read = samples.read(path, request.format_of(path), request.output_fields)
    return samples.Samples(path, tuple(samples.in_order_of(references, read)))


def _transcripts(read: samples.Samples, text_format: str) -> list[Transcript]:
    return [
        Transcript(f"{read.path}, line {sample.line:,}", sample.texts[0], text_format == samples.TRN)
        for sample in read.entries
    ]


def _without_notation(request: Request, path: Path) -> str:
    text_format = request.format_of(path)
    if text_format == samples.TRN:
        raise BadInput(f"{path}: format trn for summaries: allowed: {samples.TEXT}, {samples.JSON_LINES}")
    return text_format


def _error_counts(counts_U4: NDArray[np.int64], symbols: str) -> dict[str, int]:
    substitutions, deletions, insertions, length = map(int, counts_U4.sum(axis=0))
    return {
        "utterances": len(counts_U4),
        "utterances_with_errors": int((counts_U4[:, :3].sum(axis=1) > 0).sum()),
        symbols: length,
        "correct": length - substitutions - deletions,
        "substitutions": substitutions,
        "deletions": deletions,
        "insertions": insertions,
        "errors": substitutions + deletions + insertions,
    }


def _scaled(interval: Interval, factor: float) -> Interval:
    return Interval(interval.value * factor, interval.low * factor, interval.high * factor)


def _version() -> str:
    try:
        return metadata.version("vocabench")
    except metadata.PackageNotFoundError:
        return "unknown"
