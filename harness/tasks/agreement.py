"""Agreement of one method in one framework and precision with the oracle, over several sizes and options."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from vocabench.harness import layers, registry
from vocabench.harness.measure import agreement
from vocabench.harness.measure.workload import Batch, batch, zipf_counts
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement
from vocabench.harness.run.settings import Setting
from vocabench.harness.tasks.shared.result import Result
from vocabench.harness.tasks.shared.task import Task
from vocabench.impls.contract import Layer
from vocabench.impls.models.language_model import LanguageModelConfig
from vocabench.impls.options import Choice

SETTINGS: dict[str, Setting] = {
    "training": Choice(True, (False, True), "also compare the loss after some optimizer steps"),
}

# (V, D, N): a single token; a prime V and an odd D, so that no padding fits by accident; more tokens than words.
SIZES = ((53, 12, 1), (1009, 33, 130))
SIZE = (97, 24, 301)


def run(cell: Cell, progress: Callable[[str], None]) -> Result:
    found = []
    for number, options in enumerate(_variants(cell)):
        # The plain options in float32 are checked at several sizes; variants and other precisions share their code.
        several = number == 0 and cell.precision == "float32"
        sizes = ((cell.vocab, cell.dim, cell.tokens),) if cell.vocab else SIZES if several else (SIZE,)
        for vocab, dim, tokens in sizes:
            progress(f"V={vocab} N={tokens} {options or ''}")
            layer, inputs = _layer(cell, options, vocab, dim, tokens)
            found += agreement.check_layer(layer, inputs, k=min(10, vocab))
            found.append(agreement.check_ties(layer, inputs, k=min(10, vocab)))
        if cell.settings["training"] and number == 0 and cell.precision in agreement.TRAINING_OPTIMIZERS:
            found.append(_training(cell, options))
    summary = agreement.summary(found)
    detail = {"comparisons": [c.to_json() for c in found]}
    return Result([Measurement("agreement_error", summary["error"], detail=detail)], summary)


def _layer(cell: Cell, options: dict[str, object], vocab: int, dim: int, tokens: int) -> tuple[Layer, Batch]:
    counts_V = zipf_counts(vocab)
    layer = layers.create(
        cell.framework,
        cell.method,
        counts=counts_V,
        dim=dim,
        seed=cell.seed,
        device=cell.device,
        dtype=cell.precision,
        vocab=None,
        **options,
    )
    return layer, batch(counts_V, tokens=tokens, dim=dim, seed=cell.seed)


def _training(cell: Cell, options: dict[str, object]) -> agreement.Comparison:
    optimizer = agreement.TRAINING_OPTIMIZERS[cell.precision]
    if cell.precision == "bfloat16":
        return agreement.check_descent(*_layer(cell, options, *SIZE), optimizer)
    spec = layers.spec(
        cell.method, counts=zipf_counts(61), dim=14, vocab=None, seed=cell.seed, dtype=cell.precision, **options
    )
    config = LanguageModelConfig(embedding=10, hidden=14, optimizer=optimizer, seed=cell.seed)
    return agreement.check_training(cell.framework, spec, config, cell.device)


def _variants(cell: Cell) -> Iterator[dict[str, object]]:
    """Yield the options of the cell, and in float32 the variants of the method if the cell has no options."""
    yield dict(cell.options)
    if not cell.options and cell.precision == "float32":
        yield from map(dict, registry.definition(cell.method).variants)


TASK = Task(SETTINGS, run)
