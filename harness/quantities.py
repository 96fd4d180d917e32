"""Every quantity a row can hold: its unit, which direction is better, and what it is."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LOWER, HIGHER = "lower", "higher"

# name: (unit, better, meaning)
QUANTITIES: dict[str, tuple[str, str, str]] = {
    "layer_seconds": ("s", LOWER, "forward and backward of the output layer alone"),
    "layer_step_seconds": ("s", LOWER, "forward, backward and optimizer step of the output layer alone"),
    "row_sparse_step_seconds": ("s", LOWER, "the same, updating only the rows reached; Adagrad without weight decay"),
    "trained_layer_seconds": ("s", LOWER, "forward and backward of the output layer alone, once trained, on text"),
    "step_seconds": ("s", LOWER, "one training step of the whole model"),
    "topk_seconds": ("s", LOWER, "the exact 10 likeliest words for a batch of hidden vectors"),
    "topk1_seconds": ("s", LOWER, "the same for a single hidden vector, the mean of up to 32 decoded in turn"),
    "expanded_share": ("1", LOWER, "clusters or tree nodes scored for the exact 10 likeliest words, of all there are"),
    "beam_seconds": ("s", LOWER, "10 likely words by a layer-wise search of width 10, for the same batch"),
    "beam_recall": ("1", HIGHER, "share of the exact 10 likeliest words that the layer-wise search finds"),
    "sample_seconds": ("s", LOWER, "one word drawn for each of the same hidden vectors"),
    "compile_seconds": ("s", LOWER, "first call less later ones: tracing, compiling, tuning"),
    "peak_bytes": ("B", LOWER, "most extra memory during forward and backward of the layer"),
    "step_peak_bytes": ("B", LOWER, "most extra memory during one training step of the whole model"),
    "roofline_share": ("ratio", HIGHER, "the least time that the ceilings leave the layer, over `layer_seconds`"),
    "least_flops": ("FLOP", LOWER, "what forward and backward of the layer take at least, by the method's formula"),
    "least_bytes": ("B", LOWER, "what they read and write at least: every input and every output once"),
    "ceiling_flops_per_second": ("FLOP/s", HIGHER, "the framework's best in a large matrix product"),
    "ceiling_bytes_per_second": ("B/s", HIGHER, "the framework's best in adding a large array to another in place"),
    "noise_floor": ("ratio", LOWER, "half width of the 95 % interval of an A/A comparison, relative"),
    "perplexity": ("1", LOWER, "exp of the mean negative log-likelihood per token, on the held-out split"),
    "cluster_perplexity": ("1", LOWER, "perplexity of the cluster of the target word (SOHSM equation 5)"),
    "in_cluster_perplexity": ("1", LOWER, "perplexity of the target word given its cluster (SOHSM equation 6)"),
    "analogy_accuracy": (
        "1",
        HIGHER,
        "questions a : b = c : ? whose nearest word by cosine is the answer, all words known",
    ),
    "similarity_correlation": (
        "1",
        HIGHER,
        "Spearman's rho of cosines with people's similarity of pairs, both words known",
    ),
    "glove_loss": ("1", LOWER, "mean weighted squared error of GloVe's factorisation, on the text it was fitted to"),
    **{
        f"{measure}_{name}": ("1", HIGHER, f"ROUGE-{measure.removeprefix('rouge')}: {meaning}, mean of the samples")
        for name, meaning in (("f1", "F1 of whole summaries"), ("recall75", "recall of the first 75 bytes"))
        for measure in ("rouge1", "rouge2", "rougeL")
    },
    **{
        name: ("1", LOWER, f"{unit} error rate: substitutions, deletions and insertions over the references' {unit}s")
        for name, unit in (("cer", "character"), ("per", "phone"))
    },
    "rtf": ("1", LOWER, "real-time factor: seconds of beam search, in batches, over seconds of audio"),
    "decode_seconds": ("s", LOWER, "beam search of a summary, in batches, its source read among it"),
    "train_seconds": ("s", LOWER, "training without evaluation, data loading included"),
    "agreement_error": ("tolerance", LOWER, "largest error against the float64 oracle, in units of its tolerance"),
}

ROOFLINE = ("roofline_share", "least_flops", "least_bytes", "ceiling_flops_per_second", "ceiling_bytes_per_second")

# The machine's and the method's, not the code's, and shares of the roofline, which are times once more: no gate judges
# these, no history keeps them.
NOT_JUDGED = frozenset({"noise_floor", *ROOFLINE})


@dataclass(frozen=True)
class Measurement:
    """One quantity of one cell.

    Attributes:
        samples: Every sample that `value` sums up.
        low, high: 95 % interval of `value`, where there is one.
        ratio: {"value", "low", "high", "samples"}: full softmax's figure over this one, paired.
        detail: Anything more that a reader of the row may want, such as a training curve.
    """

    quantity: str
    value: float
    samples: list[float] = field(default_factory=list)
    low: float | None = None
    high: float | None = None
    ratio: dict[str, Any] | None = None
    detail: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        unit, better, _ = QUANTITIES[self.quantity]
        return {**asdict(self), "unit": unit, "better": better}
