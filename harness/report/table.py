"""The comparison as tables: method by framework, with perplexity, speed-up and its interval, memory and agreement."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import pandas as pd

from vocabench.harness import registry
from vocabench.harness.measure.agreement import DISAGREE
from vocabench.harness.quantities import HIGHER
from vocabench.harness.report import reliability
from vocabench.harness.report.formats import section
from vocabench.harness.report.over_seeds import combined
from vocabench.harness.report.rows import KEYS, Record, full_name, groups, is_doubtful, quantity_of, ratio_of, value_of
from vocabench.harness.report.units import ratio, seconds, share, size
from vocabench.harness.tasks.shared.paired import BASELINE

_NOT_FINITE = "not finite"
_RATIO = "ratio_to_full_softmax"


class _Column(NamedTuple):
    """A column of a table.

    Attributes:
        title: Heading.
        quantity: Quantity whose records it shows.
        show: Returns a record as text.
        field: Key of the record that decides which line is best.
        ranked: Whether a line of the column can be the best.
    """

    title: str
    quantity: str
    show: Callable[[Record], str]
    field: str = "value"
    ranked: bool = True


def render(records: Sequence[Record], text_format: str) -> str:
    """Return records in one of `FORMATS`; csv and json list them flat, the others group them into tables."""
    if text_format == "json":
        return json.dumps(records, indent=1) + "\n"
    if text_format == "csv":
        return pd.DataFrame.from_records(list(records), columns=list(KEYS)).to_csv(index=False)
    return "\n".join(section(title, table, text_format) for title, table in tables(combined(records)))


def tables(records: Sequence[Record]) -> list[tuple[str, pd.DataFrame]]:
    """Return titles and tables of records that are combined over seeds.

    Lines are ordered by method as measured, then by framework.
    """
    titled = [*_model_tables(records), *_layer_tables(records), *reliability.tables(records)]
    agreement = _of_task(records, "agreement")
    if agreement:
        titled.append(("Agreement with the float64 oracle: largest error, 1 = the tolerance", _agreement(agreement)))
    unknown_tasks = {record["task"] for record in records} - set(registry.tasks())
    for (task,), part in groups((r for r in records if r["task"] in unknown_tasks), "task").items():
        titled.append((f"Task {task}, which is not known here", _figures([r for r in part if r["quantity"]])))
    failed = [r for r in records if r["status"] not in ("ok", "disagree")]
    if failed:
        columns = ["task", "framework", "method", "vocab", "precision", "status", "message"]
        lines = [[_short(record[column]) for column in columns] for record in failed]
        titled.append(("Not measured", pd.DataFrame(lines, columns=columns)))
    return [(title, table) for title, table in titled if len(table)]


def _model_tables(records: Sequence[Record]) -> list[tuple[str, pd.DataFrame]]:
    """Return the tables of tasks that train a model."""
    titled = []
    modelling = _of_task(records, "language_modelling")
    for (dataset, vocab), part in groups(modelling, "dataset", "vocab").items():
        titled.append((f"Language modelling on {dataset}, {vocab:,} words", _table(part, _LANGUAGE_MODELLING)))
        title = f"Speed of the layers trained on {dataset}, {vocab:,} words, full softmax = 1"
        titled.append((title, _table(part, _TRAINED)))
    vectors = _of_task(records, "word_vectors")
    for (dataset, vocab, objective), part in groups(vectors, "dataset", "vocab", "objective").items():
        titled.append((f"Word vectors by {objective} on {dataset}, {vocab:,} words", _table(part, _WORD_VECTORS)))
    documents = _of_task(records, "documents")
    for (dataset, vocab, objective), part in groups(documents, "dataset", "vocab", "objective").items():
        titled.append((f"Documents by {objective} on {dataset}, {vocab:,} words", _table(part, _DOCUMENTS)))
    summaries = _of_task(records, "summarization")
    for (dataset, vocab, split), part in groups(summaries, "dataset", "vocab", "split").items():
        titled.append((f"Summarization on {dataset}{_where(split)}, {vocab:,} words", _table(part, _SUMMARIZATION)))
    speech = _of_task(records, "speech")
    for (dataset, vocab, split, units), part in groups(speech, "dataset", "vocab", "split", "units").items():
        titled.append((f"Speech on {dataset}{_where(split)}, {vocab:,} {units}", _table(part, _SPEECH)))
    return titled


def _layer_tables(records: Sequence[Record]) -> list[tuple[str, pd.DataFrame]]:
    """Return the tables of tasks that measure a layer alone."""
    titled = []
    timing = groups(_of_task(records, "timing"), "vocab", "dim", "tokens", "precision", "device")
    for (vocab, dim, tokens, precision, device), part in sorted(timing.items(), key=lambda group: group[0]):
        title = f"Speed at {vocab:,} words (N={tokens:,}, D={dim}, {precision}, {device}), full softmax = 1"
        titled.append((title, _table(part, _TIMING)))
        title = f"Decoding at {vocab:,} words, random hidden vectors (D={dim}, {precision}, {device}), full softmax = 1"
        titled.append((title, _table(part, _DECODING)))
    keys = "devices", "vocab", "dim", "tokens", "precision", "device"
    split = groups(_of_task(records, "parallel"), *keys)
    for (devices, vocab, dim, tokens, precision, device), part in sorted(split.items(), key=lambda group: group[0]):
        where = f"N={tokens:,}, D={dim}, {precision}, {device}"
        title = f"Words over {devices} devices, {vocab:,} words ({where}), full softmax over as many devices = 1"
        titled.append((title, _table(part, _PARALLEL)))
    keys = "dataset", "vocab", "tokens", "dim", "precision", "device"
    trained = groups(_of_task(records, "trained_layer"), *keys)
    for (dataset, vocab, tokens, dim, precision, device), part in trained.items():
        where = f"N={tokens:,}, D={dim}, {precision}, {device}"
        title = f"The trained layer {dataset}, {vocab:,} words ({where}), full softmax = 1"
        titled.append((title, _table(part, _TRAINED_LAYER)))
    return titled


def _of_task(records: Sequence[Record], task: str) -> list[Record]:
    return [record for record in records if record["task"] == task and record["quantity"]]


def _where(split: str) -> str:
    return "" if split == "test" else f", {split} split"


def _table(records: Sequence[Record], columns: Sequence[_Column]) -> pd.DataFrame:
    """Return a line for each method and framework, and a column for each quantity that occurs in the records."""
    shown = {column.quantity for column in columns}
    records = [record for record in records if record["quantity"] in shown]
    lines: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        lines.setdefault((full_name(record), record["framework"]), {})[quantity_of(record)] = record
    ordered = _by_method(lines)
    measured = {record["quantity"] for record in records}
    data: dict[str, list[str]] = {
        "method": [name for name, _ in ordered],
        "framework": [framework for _, framework in ordered],
    }
    if any(record["seeds"] > 1 for record in records):
        data["seeds"] = [str(max(record["seeds"] for record in lines[line].values())) for line in ordered]
    best: dict[str, set[int]] = {}
    for column in columns:
        if column.quantity in measured:
            cells = [lines[line].get(column.quantity) for line in ordered]
            shown_cells = ["" if record is None else _shown(record, column) for record in cells]
            if any(shown_cells):
                data[column.title] = shown_cells
                best[column.title] = _best(cells, column)
    data["agreement"] = [next(iter(lines[line].values()))["agreement"] for line in ordered]
    table = pd.DataFrame(data)
    table.attrs["best"] = best
    return table


def _by_method(lines: dict[tuple[str, str], dict]) -> list[tuple[str, str]]:
    """Return lines of (name, framework) grouped by name, both in order of appearance."""
    place = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in lines))}
    return sorted(lines, key=lambda line: place[line[0]])


def _best(cells: Sequence[Record | None], column: _Column) -> set[int]:
    """Return the lines with the best figure of a column, if at least two lines have a figure."""
    if not column.ranked:
        return set()
    figures: dict[int, float] = {}
    for line, record in enumerate(cells):
        if record is None or record["agreement"] == DISAGREE:
            continue
        value = record[column.field]
        if value is not None:
            figures[line] = value if column.field == _RATIO or record["better"] == HIGHER else -value
    if len(figures) < 2:
        return set()
    return {line for line, value in figures.items() if value == max(figures.values())}


def _agreement(records: Sequence[Record]) -> pd.DataFrame:
    precisions = list(dict.fromkeys(record["precision"] for record in records))
    lines: dict[tuple[str, str], dict[str, str]] = {}
    for record in records:
        value = _NOT_FINITE if record["value"] is None else f"{record['value']:.2g}"
        marked = value if record["agreement"] == "agree" else f"{value} DISAGREES"
        lines.setdefault((full_name(record), record["framework"]), {})[record["precision"]] = marked
    return pd.DataFrame(
        [[*line, *(lines[line].get(precision, "") for precision in precisions)] for line in _by_method(lines)],
        columns=["method", "framework", *precisions],
    )


def _figures(records: Sequence[Record]) -> pd.DataFrame:
    """Return a line for each record with its stored value."""
    return pd.DataFrame(
        [
            [full_name(r), r["framework"], r["quantity"], _NOT_FINITE if r["value"] is None else f"{r['value']:.4g}"]
            for r in records
        ],
        columns=["method", "framework", "quantity", "value"],
    )


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:119] + "…"


def _shown(record: Record, column: _Column) -> str:
    return _NOT_FINITE if column.field == "value" and record["value"] is None else column.show(record)


def _perplexity(record: Record) -> str:
    """Return a perplexity, with its interval over seeds if there are several."""
    low, high = record["low"], record["high"]
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    return f"{record['value']:.2f}{interval}"


def _perplexity_difference(record: Record) -> str:
    """Return the relative difference to full softmax paired by seed, with its verdict."""
    return _over_seeds(record, "%")


def _duration(record: Record) -> str:
    return seconds(value_of(record))


def _first_call(record: Record) -> str:
    return seconds(record["value"]) if record["value"] else "none seen"


def _memory(record: Record) -> str:
    return size(value_of(record))


def _millions(record: Record) -> str:
    return f"{value_of(record) / 1e6:,.2f} M"


def _share(record: Record) -> str:
    return f"{100 * value_of(record):.1f} %"


def _of_roofline(record: Record) -> str:
    return share(value_of(record))


def _factor(record: Record) -> str:
    return f"{record['value']:.3g}"


def _pace(record: Record) -> str:
    return f"{value_of(record) / 1000:,.0f} k"


def _correlation(record: Record) -> str:
    return f"{record['value']:.3f}"


def _score(record: Record) -> str:
    """Return a score in percent, as in papers, with its 95 % interval over samples."""
    low, high = record["low"], record["high"]
    interval = "" if low is None or high is None else f" [{100 * low:.2f}, {100 * high:.2f}]"
    return f"{100 * value_of(record):.2f}{interval}"


def _difference(record: Record) -> str:
    """Return the difference to full softmax of the same framework: over seeds if there are several, else by samples."""
    if record["seeds"] > 1:
        return _over_seeds(record)
    if record["difference"] is None or record["method"] == BASELINE:
        return ""
    return f"{100 * record['difference']:+.2f} (p {record['p_value']:.3f})"


def _over_seeds(record: Record, unit: str = "") -> str:
    """Return a difference paired by seed in percent, with its interval and verdict."""
    difference, low, high = (record["seed_difference"], record["seed_difference_low"], record["seed_difference_high"])
    if difference is None:
        return ""
    interval = "" if low is None or high is None else f" [{100 * low:+.2f}, {100 * high:+.2f}]"
    return f"{100 * difference:+.2f}{interval}{unit and ' ' + unit}, {record['verdict']}"


def _speed(record: Record) -> str:
    """Return the speed-up with its interval, unless the layer disagrees with its definition."""
    if record["agreement"] == DISAGREE:
        return "wrong result"
    found = ratio_of(record)
    if found is None:
        return ""
    value, low, high = found
    # The speed-up of full softmax is 1 by definition; its interval comes from a second copy and shows the noise.
    mark = reliability.MARK if is_doubtful(record) else ""
    return f"{'A/A' if record['method'] == BASELINE else f'{ratio(value)}x'} [{ratio(low)}, {ratio(high)}]{mark}"


_LANGUAGE_MODELLING = (
    _Column("perplexity", "perplexity", _perplexity),
    _Column("against full softmax", "perplexity", _perplexity_difference, ranked=False),
    _Column("of known words", "known_perplexity", _perplexity, ranked=False),
    _Column("of unseen words", "unseen_perplexity", _perplexity, ranked=False),
    _Column("cluster", "cluster_perplexity", _perplexity),
    _Column("in cluster", "in_cluster_perplexity", _perplexity),
    _Column("training", "train_seconds", _duration),
)
_WORD_VECTORS = (
    _Column("perplexity", "perplexity", _perplexity),
    _Column("analogies", "analogy_accuracy", _share),
    _Column("similarity", "similarity_correlation", _correlation),
    _Column("frequency probe", "frequency_probe", _correlation, ranked=False),
    _Column("PMI", "pmi_correlation", _correlation),
    _Column("words/s", "words_per_second", _pace),
    _Column("training", "train_seconds", _duration),
)
_DOCUMENTS = (
    _Column("triplets", "triplet_accuracy", _share),
    _Column("training", "train_seconds", _duration),
)
_SUMMARIZATION = (
    _Column("R-1", "rouge1_f1", _score),
    _Column("R-2", "rouge2_f1", _score),
    _Column("R-L", "rougeL_f1", _score),
    _Column("against full softmax", "rougeL_f1", _difference, "difference", ranked=False),
    _Column("R-1 recall", "rouge1_recall75", _score),
    _Column("R-2 recall", "rouge2_recall75", _score),
    _Column("R-L recall", "rougeL_recall75", _score),
    _Column("against full softmax, recall", "rougeL_recall75", _difference, "difference", ranked=False),
    _Column("perplexity", "perplexity", _perplexity),
    _Column("training", "train_seconds", _duration),
    _Column("a step", "step_seconds", _duration),
    _Column("its memory", "step_peak_bytes", _memory),
    _Column("decoding one", "decode_seconds", _duration),
)
_SPEECH = (
    _Column("CER", "cer", _score),
    _Column("CER against full softmax", "cer", _difference, "difference", ranked=False),
    _Column("PER", "per", _score),
    _Column("PER against full softmax", "per", _difference, "difference", ranked=False),
    _Column("perplexity", "perplexity", _perplexity),
    _Column("training", "train_seconds", _duration),
    _Column("a step", "step_seconds", _duration),
    _Column("its memory", "step_peak_bytes", _memory),
    _Column("real-time factor", "rtf", _factor),
)
_TIMING = (
    _Column("forward+backward", "layer_seconds", _speed, _RATIO),
    _Column("with optimizer", "layer_step_seconds", _speed, _RATIO),
    _Column("touched rows only", "row_sparse_step_seconds", _speed, _RATIO),
    _Column("whole model", "step_seconds", _speed, _RATIO),
    _Column("time", "layer_seconds", _duration),
    _Column("of roofline", "roofline_share", _of_roofline, ranked=False),
    _Column("compile", "compile_seconds", _first_call),
    _Column("peak memory", "peak_bytes", _memory),
    _Column("parameters", "parameters", _millions, ranked=False),
)
_DECODING = (
    _Column("top-10", "topk_seconds", _speed, _RATIO),
    _Column("of one row", "topk1_seconds", _speed, _RATIO),
    _Column("expanded", "expanded_share", _share),
    _Column("beam of 10", "beam_seconds", _speed, _RATIO),
    _Column("its recall", "beam_recall", _share),
    _Column("sample", "sample_seconds", _speed, _RATIO),
    _Column("nucleus sample", "nucleus_sample_seconds", _speed, _RATIO),
    _Column("score of a word", "score_seconds", _speed, _RATIO),
    _Column("entropy", "entropy_seconds", _speed, _RATIO),
)
_PARALLEL = (
    _Column("forward+backward", "layer_seconds", _speed, _RATIO),
    _Column("time", "layer_seconds", _duration),
    _Column("peak memory of a device", "peak_bytes", _memory),
    _Column("parameters of a device", "device_parameters", _millions, ranked=False),
    *_DECODING,
)
_TRAINED = (_Column("forward+backward", "trained_layer_seconds", _speed, _RATIO), *_DECODING)
_TRAINED_LAYER = (_Column("perplexity", "perplexity", _perplexity), *_TRAINED)
