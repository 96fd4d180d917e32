"""The comparison as tables: method x framework, with perplexity, speed-up and its interval, memory and agreement."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import pandas as pd

from vocabench.harness import registry
from vocabench.harness.quantities import HIGHER
from vocabench.harness.report.rows import KEYS, Record, groups
from vocabench.harness.run.cells import variant
from vocabench.harness.run.store import Row
from vocabench.harness.tasks.shared.paired import BASELINE

FORMATS = ("markdown", "latex", "csv", "json", "html")


class _Column(NamedTuple):
    """A quantity's records as texts; which field of a record it shows, and whether one of its lines is the best."""

    title: str
    quantity: str
    show: Callable[[Record], str]
    field: str = "value"
    ranked: bool = True


_RATIO = "ratio_to_full_softmax"
_BOLD, _END = "\ue000", "\ue001"  # around bold text until LaTeX's signs have been escaped


def render(records: Sequence[Record], form: str) -> str:
    """`records` in one of `FORMATS`: csv and json give them all, flat; the others one table for each kind of result."""
    if form == "json":
        return json.dumps(records, indent=1) + "\n"
    if form == "csv":
        return pd.DataFrame.from_records(list(records), columns=list(KEYS)).to_csv(index=False)
    return "\n".join(section(title, table, form) for title, table in tables(records))


def tables(records: Sequence[Record]) -> list[tuple[str, pd.DataFrame]]:
    """Titles and tables; rows by method in the order of measurement, then by framework."""
    found: list[tuple[str, pd.DataFrame]] = []
    modelling = [r for r in records if r["task"] == "language_modelling" and r["quantity"]]
    for (dataset, vocab), part in groups(modelling, "dataset", "vocab").items():
        found.append((f"Language modelling on {dataset}, {vocab:,} words", _table(part, _LANGUAGE_MODELLING)))
        title = f"Speed of the layers trained on {dataset}, {vocab:,} words, full softmax = 1"
        found.append((title, _table(part, _TRAINED)))
    vectors = [r for r in records if r["task"] == "word_vectors" and r["quantity"]]
    for (dataset, vocab, objective), part in groups(vectors, "dataset", "vocab", "objective").items():
        found.append((f"Word vectors by {objective} on {dataset}, {vocab:,} words", _table(part, _WORD_VECTORS)))
    summaries = [r for r in records if r["task"] == "summarization" and r["quantity"]]
    for (dataset, vocab, split), part in groups(summaries, "dataset", "vocab", "split").items():
        found.append((f"Summarization on {dataset}{_where(split)}, {vocab:,} words", _table(part, _SUMMARIZATION)))
    speech = [r for r in records if r["task"] == "speech" and r["quantity"]]
    for (dataset, vocab, split, units), part in groups(speech, "dataset", "vocab", "split", "units").items():
        found.append((f"Speech on {dataset}{_where(split)}, {vocab:,} {units}", _table(part, _SPEECH)))
    timing = [r for r in records if r["task"] == "timing" and r["quantity"]]
    for (vocab, dim, tokens, precision, device), part in sorted(
        groups(timing, "vocab", "dim", "tokens", "precision", "device").items(), key=lambda group: group[0]
    ):
        title = f"Speed at {vocab:,} words (N={tokens:,}, D={dim}, {precision}, {device}), full softmax = 1"
        found.append((title, _table(part, _TIMING)))
        title = f"Decoding at {vocab:,} words, random hidden vectors (D={dim}, {precision}, {device}), full softmax = 1"
        found.append((title, _table(part, _DECODING)))
    given = [r for r in records if r["task"] == "trained_layer" and r["quantity"]]
    keys = "dataset", "vocab", "tokens", "dim", "precision", "device"
    for (dataset, vocab, tokens, dim, precision, device), part in groups(given, *keys).items():
        where = f"N={tokens:,}, D={dim}, {precision}, {device}"
        found.append(
            (f"The trained layer {dataset}, {vocab:,} words ({where}), full softmax = 1", _table(part, _GIVEN))
        )
    agreement = [r for r in records if r["task"] == "agreement" and r["quantity"]]
    if agreement:
        found.append(("Agreement with the float64 oracle: largest error, 1 = the tolerance", _agreement(agreement)))
    for (task,), part in groups((r for r in records if r["task"] not in registry.tasks()), "task").items():
        found.append((f"Task {task}, which is not known here", _figures([r for r in part if r["quantity"]])))
    failed = [r for r in records if r["status"] not in ("ok", "disagree")]
    if failed:
        columns = ["task", "framework", "method", "vocab", "precision", "status", "message"]
        found.append(("Not measured", pd.DataFrame([[_short(r[c]) for c in columns] for r in failed], columns=columns)))
    return [(title, table) for title, table in found if len(table)]


def _where(split: str) -> str:
    return "" if split == "test" else f", {split} split"


def full_name(record: Record) -> str:
    """Of a line: the method with its options, and what sets it apart from others of the same name."""
    apart = f" ({record['apart']})" if record["apart"] else ""
    return f"{record['method']} {record['options']}".strip() + apart


def _table(records: Sequence[Record], columns: Sequence[_Column]) -> pd.DataFrame:
    """A line for each method and framework, a column for each quantity that was measured at all."""
    shown = {column.quantity for column in columns}
    records = [record for record in records if record["quantity"] in shown]
    lines: dict[tuple[str, str], dict[str, Record]] = {}
    for record in records:
        lines.setdefault((full_name(record), record["framework"]), {})[record["quantity"]] = record
    methods = list(dict.fromkeys(name for name, _ in lines))
    ordered = sorted(lines, key=lambda line: methods.index(line[0]))
    measured = {record["quantity"] for record in records}
    data: dict[str, list[str]] = {
        "method": [name for name, _ in ordered],
        "framework": [framework for _, framework in ordered],
    }
    best: dict[str, set[int]] = {}
    for column in columns:
        if column.quantity in measured:
            found = [lines[line].get(column.quantity) for line in ordered]
            data[column.title] = ["" if record is None else _shown(record, column) for record in found]
            best[column.title] = _best(found, column)
    data["agreement"] = [next(iter(lines[line].values()))["agreement"] for line in ordered]
    table = pd.DataFrame(data)
    table.attrs["best"] = best
    return table


def _best(found: Sequence[Record | None], column: _Column) -> set[int]:
    """The lines with the best figure of a column, where two or more have one: what LaTeX prints in bold."""
    if not column.ranked:
        return set()
    figures: dict[int, float] = {}
    for line, record in enumerate(found):
        if record is None or record["agreement"] == "disagree":
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
        value = "not finite" if record["value"] is None else f"{record['value']:.2g}"
        marked = value if record["agreement"] == "agree" else f"{value} DISAGREES"
        lines.setdefault((full_name(record), record["framework"]), {})[record["precision"]] = marked
    methods = list(dict.fromkeys(name for name, _ in lines))
    ordered = sorted(lines, key=lambda line: methods.index(line[0]))
    return pd.DataFrame(
        [[*line, *(lines[line].get(precision, "") for precision in precisions)] for line in ordered],
        columns=["method", "framework", *precisions],
    )


def _figures(records: Sequence[Record]) -> pd.DataFrame:
    """A line for each quantity, as it was stored."""
    return pd.DataFrame(
        [
            [full_name(r), r["framework"], r["quantity"], "not finite" if r["value"] is None else f"{r['value']:.4g}"]
            for r in records
        ],
        columns=["method", "framework", "quantity", "value"],
    )


def _shown(record: Record, column: _Column) -> str:
    return "not finite" if column.field == "value" and record["value"] is None else column.show(record)


def _perplexity(record: Record) -> str:
    return f"{record['value']:.2f}"


def _duration(record: Record) -> str:
    return seconds(record["value"])


def _first_call(record: Record) -> str:
    return seconds(record["value"]) if record["value"] else "none seen"


def _memory(record: Record) -> str:
    return size(record["value"])


def _share(record: Record) -> str:
    return f"{100 * record['value']:.1f} %"


def _of_roofline(record: Record) -> str:
    return share(record["value"])


def _factor(record: Record) -> str:
    return f"{record['value']:.3g}"


def _correlation(record: Record) -> str:
    return f"{record['value']:.3f}"


def _score(record: Record) -> str:
    """In per cent, as papers give it, with its 95 % interval over samples."""
    value, low, high = (record[key] for key in ("value", "low", "high"))
    return f"{100 * value:.2f}" + ("" if None in (low, high) else f" [{100 * low:.2f}, {100 * high:.2f}]")


def _difference(record: Record) -> str:
    """How much higher it is than full softmax's of the same framework; how often chance alone would give as much."""
    if record["difference"] is None or record["method"] == BASELINE:
        return ""
    return f"{100 * record['difference']:+.2f} (p {record['p_value']:.3f})"


def _speed(record: Record) -> str:
    """The speed-up with its interval; a figure is given only next to its agreement."""
    if record["agreement"] == "disagree":
        return "wrong result"
    value, low, high = (record[key] for key in (_RATIO, "ratio_low", "ratio_high"))
    if value is None:
        return ""
    # Full softmax over itself is 1 by definition; what was measured, against a second copy of it, is the noise.
    return f"{'A/A' if record['method'] == BASELINE else f'{_times(value)}x'} [{_times(low)}, {_times(high)}]"


_LANGUAGE_MODELLING = (
    _Column("perplexity", "perplexity", _perplexity),
    _Column("cluster", "cluster_perplexity", _perplexity),
    _Column("in cluster", "in_cluster_perplexity", _perplexity),
    _Column("training", "train_seconds", _duration),
)
_WORD_VECTORS = (
    _Column("perplexity", "perplexity", _perplexity),
    _Column("analogies", "analogy_accuracy", _share),
    _Column("similarity", "similarity_correlation", _correlation),
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
)
_DECODING = (
    _Column("top-10", "topk_seconds", _speed, _RATIO),
    _Column("of one row", "topk1_seconds", _speed, _RATIO),
    _Column("expanded", "expanded_share", _share),
    _Column("beam of 10", "beam_seconds", _speed, _RATIO),
    _Column("its recall", "beam_recall", _share),
    _Column("sample", "sample_seconds", _speed, _RATIO),
)
_TRAINED = (_Column("forward+backward", "trained_layer_seconds", _speed, _RATIO), *_DECODING)
_GIVEN = (_Column("perplexity", "perplexity", _perplexity), *_TRAINED)


def _times(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}"


def seconds(value: float) -> str:
    for unit, scale, below in (("µs", 1e6, 1e-3), ("ms", 1e3, 1.0), ("s", 1.0, 600.0)):
        if value < below:
            return f"{value * scale:.3g} {unit}"
    return f"{value / 60:.3g} min"


def share(value: float) -> str:
    """In per cent, of two figures at least."""
    return f"{100 * value:.{0 if value >= 0.0995 else 1}f} %"


def size(value: float) -> str:
    return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:119] + "…"


def section(title: str, table: pd.DataFrame, form: str) -> str:
    """A titled table in "markdown", "latex" or "html"."""
    if form == "markdown":
        return f"### {title}\n\n{markdown(table)}\n"
    if form == "latex":
        marked = table.copy()
        for column, lines in table.attrs.get("best", {}).items():
            for line in lines:
                marked.loc[line, column] = f"{_BOLD}{marked.loc[line, column]}{_END}"
        body = marked.to_latex(index=False, escape=True, column_format="ll" + "r" * (table.shape[1] - 2))
        return f"% {title}\n" + body.replace(_BOLD, r"\textbf{").replace(_END, "}")
    return f"<h3>{escape(title)}</h3>\n{table.to_html(index=False, border=0)}\n"


def markdown(table: pd.DataFrame) -> str:
    """A Markdown table whose columns line up in a terminal too."""
    cells = [[str(name) for name in table.columns]]
    cells += [[str(value).replace("|", "\\|") for value in row] for row in table.itertuples(index=False)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(cells[0]))]

    def line(row: Sequence[str]) -> str:
        padded = zip(row, widths, strict=True)
        aligned = [text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(padded)]
        return f"| {' | '.join(aligned)} |"

    rule = "|" + "|".join("-" * (w + 1) + ("-" if i < 2 else ":") for i, w in enumerate(widths)) + "|"
    return "\n".join([line(cells[0]), rule, *map(line, cells[1:])])


def clusters(rows: Iterable[Row], most: int) -> str:
    """Words by cluster, as in table 3 of the SOHSM paper, for each row that learned clusters."""
    parts = []
    for row in rows:
        for measurement in row["measurements"]:
            found = measurement.get("detail", {}).get("clusters")
            if found:
                cell = row["cell"]
                lines = [f"{number:3d}  {' '.join(words)}" for number, words in enumerate(found[:most])]
                title = f"### Clusters of {cell['framework']} {cell['method']} on {cell['dataset']}"
                parts.append("\n".join([title, "", *lines, ""]))
    return "\n".join(parts)


def examples(rows: Iterable[Row], most: int) -> str:
    """Sources or utterances with their references and what each system made of them, as in figure 2 of the SOHSM paper;
    of rows that may quote them."""
    found: dict[tuple[str, str], tuple[dict[str, Any], list[tuple[str, str]]]] = {}
    for row in rows:
        cell = row["cell"]
        system = f"{cell['framework']} {cell['method']}{variant(cell['options'])}"
        for measurement in row["measurements"]:
            for example in measurement.get("detail", {}).get("examples", ()):
                key = cell["dataset"], example.get("text") or f"{example['id']}, {example['reference']}"
                found.setdefault(key, (example, []))[1].append((system, example["ours"]))
    parts = []
    for number, ((dataset, _), (example, systems)) in enumerate(list(found.items())[:most], start=1):
        said = [*_given(example), *systems]
        lines = [f"- {who}: {what}" for who, what in said]
        parts.append("\n".join([f"### Example {number} of {dataset}", "", *lines, ""]))
    return "\n".join(parts)


def _given(example: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What a system was given, and what it should have made of it."""
    if "text" in example:
        return [("source", example["text"]), *(("reference", each) for each in example["summaries"])]
    return [("utterance", f"{example['id']} ({example['language']})"), ("reference", example["reference"])]
