"""The picture of perplexity against the speed of the whole model, at one vocabulary and width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from docs._figures.published import Published
from vocabench.harness.report.figures import Axis, Figure, Form, Mark
from vocabench.harness.report.figures.quality import Point, pareto, steps

SPEEDS, PERPLEXITIES = "tradeoff-epyc", "baselines-pydoc"
VOCAB, DIM = 12_045, 128

# Methods with the options of their speed and of their perplexity. How clusters are initialized affects no speed.
# Left out are nce, which has a perplexity of 315, and negative_sampling, which is not a model of probabilities.
_FROM_BIGRAMS = "[bias=True,interval=0,projection={},start=bigram]"
MODELS: Sequence[tuple[Form, str, str]] = (
    (Form("full_softmax", "", "torch"), "", ""),
    (Form("fused_softmax", "", "torch"), "", ""),
    (Form("sohsm", "", "torch", "paper"), "", "[interval=200]"),
    (
        Form("sohsm", "[projection=residual]", "torch"),
        "[bias=True,projection=residual]",
        _FROM_BIGRAMS.format("residual"),
    ),
    (Form("sohsm", "[projection=none]", "torch"), "[bias=True,projection=none]", _FROM_BIGRAMS.format("none")),
    (Form("class_hsm", "", "torch", "by frequency"), "", ""),
    (Form("class_hsm", "[bins=bigram]", "torch"), "", "[bins=bigram]"),
    (Form("huffman", "", "torch"), "", ""),
    (Form("binary_tree", "", "torch", "random"), "", ""),
    (Form("adaptive_softmax", "", "torch"), "", ""),
    (Form("adaptive_log_softmax", "", "torch"), "", ""),
    (Form("sampled_softmax", "", "torch"), "", ""),
    (Form("d_softmax", "", "torch"), "", ""),
    (Form("d_softmax_star", "", "torch"), "", ""),
)


def trade_off(published: Published) -> Figure:
    """Return the figure, with steps through the models that no other one beats in both."""
    points = [_point(published, *model) for model in MODELS]
    front = sorted(pareto(points, higher_is_better=False), key=lambda point: point.speed)
    return Figure(
        section="quality",
        title=f"Perplexity against speed: pydoc, {VOCAB:,} words, LSTM of width {DIM}, one epoch, PyTorch on two cores",
        caption="",
        kind="points",
        x=Axis("speed of the whole model (full softmax = 1)", "ratio", is_logarithmic=False, includes=0.0),
        y=Axis("perplexity (lower is better)"),
        marks=[Mark(point.form, point.speed, point.quality) for point in points],
        columns=(),
        lines=(),
        description="",
        path=steps(front),
    )


def _point(published: Published, form: Form, options_of_speed: str, options_of_perplexity: str) -> Point:
    where: dict[str, Any] = {"method": form.method, "framework": form.framework, "vocab": VOCAB, "dim": DIM}
    speed = published.one(
        {**where, "rows": SPEEDS, "task": "timing", "quantity": "step_seconds", "options": options_of_speed}
    )
    perplexity = published.one(
        {
            **where,
            "rows": PERPLEXITIES,
            "task": "language_modelling",
            "quantity": "perplexity",
            "options": options_of_perplexity,
        }
    )
    ratio = 1.0 if form.method == "full_softmax" else speed["ratio_to_full_softmax"]
    assert ratio is not None
    assert perplexity["value"] is not None
    return Point(form, ratio, perplexity["value"])
