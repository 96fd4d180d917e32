"""Every quantity that a row can hold."""

from __future__ import annotations

from typing import NamedTuple

LOWER, HIGHER = "lower", "higher"


class Quantity(NamedTuple):
    """Unit of a quantity, which direction is better ("lower" or "higher"), and what it means."""

    unit: str
    better: str
    meaning: str


def _seconds(meaning: str) -> Quantity:
    return Quantity("s", LOWER, meaning)


def _bytes(meaning: str) -> Quantity:
    return Quantity("B", LOWER, meaning)


def _loss(meaning: str) -> Quantity:
    return Quantity("1", LOWER, meaning)


def _score(meaning: str) -> Quantity:
    return Quantity("1", HIGHER, meaning)


QUANTITIES: dict[str, Quantity] = {
    "layer_seconds": _seconds("forward and backward pass of the output layer alone"),
    "layer_step_seconds": _seconds("forward and backward pass and optimizer step of the output layer alone"),
    "row_sparse_step_seconds": _seconds(
        "layer_step_seconds, updating only rows with a gradient; Adagrad without weight decay"
    ),
    "trained_layer_seconds": _seconds("forward and backward pass of a trained output layer alone, on text"),
    "step_seconds": _seconds("one training step of the whole model"),
    "topk_seconds": _seconds("the exact 10 most likely words for a batch of hidden vectors"),
    "topk1_seconds": _seconds("topk_seconds for a single hidden vector, averaged over 32 of a text or 8 random ones"),
    "expanded_share": _loss("share of all clusters or tree nodes that are scored for the exact 10 most likely words"),
    "beam_seconds": _seconds("10 likely words by a layer-wise beam search of width 10, for the same batch"),
    "beam_recall": _score("share of the exact 10 most likely words that the layer-wise beam search finds"),
    "sample_seconds": _seconds("one sampled word for each hidden vector of the same batch"),
    "sample1_seconds": _seconds("sample_seconds for a single hidden vector, averaged over up to 8 vectors"),
    "nucleus_sample_seconds": _seconds(
        "sample_seconds from the smallest number of likeliest words whose probabilities sum to at least 0.9"
    ),
    "nucleus_sample1_seconds": _seconds(
        "nucleus_sample_seconds for a single hidden vector, averaged over up to 8 vectors"
    ),
    "entropy_seconds": _seconds("the entropy of the distribution of each hidden vector of the same batch"),
    "score_seconds": _seconds("the log-probability of one given word for each hidden vector of the same batch"),
    "parameters": Quantity("1", LOWER, "number of trained values of the output layer"),
    "device_parameters": Quantity("1", LOWER, "number of trained values that a device holds, where words are split"),
    "compile_seconds": _seconds("first call minus later calls: tracing, compilation, autotuning"),
    "peak_bytes": _bytes("peak of additional memory in the forward and backward pass of the layer"),
    "step_peak_bytes": _bytes("peak of additional memory in one training step of the whole model"),
    "roofline_share": Quantity(
        "ratio", HIGHER, "least time that the ceilings allow for the layer, divided by `layer_seconds`"
    ),
    "least_flops": Quantity(
        "FLOP", LOWER, "least work of the layer's forward and backward pass, by the method's formula"
    ),
    "least_bytes": _bytes("least memory traffic of the same pass: each input and each output once"),
    "ceiling_flops_per_second": Quantity("FLOP/s", HIGHER, "best rate of the framework in a large matrix product"),
    "ceiling_bytes_per_second": Quantity(
        "B/s", HIGHER, "best rate of the framework in an in-place sum of large arrays"
    ),
    # In rows from before the interval of each A/A comparison was the noise.
    "noise_floor": Quantity("ratio", LOWER, "half the width of the 95 % interval of an A/A comparison, relative"),
    "perplexity": _loss("exp of the mean negative log-likelihood per token, on the held-out split"),
    "known_perplexity": _loss("perplexity over the target words of the vocabulary, without those that are <unk>"),
    "cluster_perplexity": _loss("perplexity of the cluster of the target word (SOHSM equation 5)"),
    "in_cluster_perplexity": _loss("perplexity of the target word given its cluster (SOHSM equation 6)"),
    "unseen_perplexity": _loss(
        "perplexity on words outside of the model's vocabulary, over a larger one, with vectors from their spelling"
    ),
    "analogy_accuracy": _score(
        "share of questions a : b = c : ? whose nearest word by cosine is the answer, if all four words are known"
    ),
    "similarity_correlation": _score(
        "Spearman's rho of cosines with human similarity ratings of word pairs, if both words are known"
    ),
    "frequency_probe": _loss(
        "area below the ROC curve when the direction of a word's vector is to tell whether the word is frequent; "
        "0.5 is chance"
    ),
    "pmi_correlation": _score(
        "correlation of products of word and context vectors with the PMI of the pairs in the text"
    ),
    "known_words": _score("share of the vocabulary for which a file has a vector"),
    "words_per_second": Quantity("words/s", HIGHER, "words of the training text per second of training"),
    "triplet_accuracy": _score(
        "share of triplets in which a document has a larger cosine with one of its own label than with another one"
    ),
    "glove_loss": _loss("mean weighted squared error of GloVe's factorization, on its training text"),
    **{
        f"{measure}_{name}": _score(f"ROUGE-{measure.removeprefix('rouge')}: {meaning}, averaged over the samples")
        for name, meaning in (("f1", "F1 of whole summaries"), ("recall75", "recall of the first 75 bytes"))
        for measure in ("rouge1", "rouge2", "rougeL")
    },
    **{
        name: _loss(f"{unit} error rate: substitutions, deletions and insertions per {unit} of the references")
        for name, unit in (("cer", "character"), ("per", "phone"))
    },
    "rtf": _loss("real-time factor: seconds of batched beam search per second of audio"),
    "decode_seconds": _seconds("batched beam search per summary, including encoding the source"),
    "train_seconds": _seconds("training without evaluation, including loading data"),
    "agreement_error": Quantity(
        "tolerance", LOWER, "largest error relative to the float64 definition, in units of its tolerance"
    ),
}

_DECODING = (
    "topk_seconds",
    "topk1_seconds",
    "beam_seconds",
    "sample_seconds",
    "sample1_seconds",
    "nucleus_sample_seconds",
    "nucleus_sample1_seconds",
    "score_seconds",
    "entropy_seconds",
)
_SHORT = 0.005  # seconds: shorter decoding differs more between processes
TRAINING, SHORT_DECODING, LONG_DECODING = "training", "decoding below 5 ms", "decoding from 5 ms"


def is_on_log_scale(quantity: str) -> bool:
    """Return whether a positive quantity is averaged and compared by its logarithm, as its spread grows with it."""
    return quantity.endswith(("perplexity", "_seconds", "_bytes", "_loss", "rtf"))


def class_of_time(quantity: str, seconds: float) -> str:
    """Return the class of times that differ between processes by similar amounts."""
    if quantity not in _DECODING:
        return TRAINING
    return SHORT_DECODING if seconds < _SHORT else LONG_DECODING


ROOFLINE = ("roofline_share", "least_flops", "least_bytes", "ceiling_flops_per_second", "ceiling_bytes_per_second")

# Properties of the machine or the method, and shares that repeat a time. Gates do not judge them, and histories do not
# keep them.
NOT_JUDGED = frozenset({"noise_floor", "frequency_probe", "parameters", *ROOFLINE})
