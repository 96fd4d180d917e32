"""`vocabench score`: score the outputs of any system against references."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from vocabench.harness.commands.command import Command, count, nonempty_text
from vocabench.harness.commands.output import emit
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.scoring.results import Result
    from vocabench.harness.scoring.systems import Request

_MOST_RESAMPLES = 10**6
_RATES = {
    "cer": "character error rate",
    "wer": "word error rate",
    "per": "phone error rate",
}


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    metrics = parser.add_subparsers(dest="metric", metavar="METRIC", required=True)

    def add(name: str, text: str) -> argparse.ArgumentParser:
        metric = metrics.add_parser(name, help=text, description=text)
        metric.register("type", None, nonempty_text)
        metric.set_defaults(known_options=getattr(metric, "options", []))
        return metric

    _add_rouge(add("rouge", "ROUGE-1, ROUGE-2 and ROUGE-L of summaries"))
    for name, text in _RATES.items():
        _add_error_rate(add(name, f"{text} of transcripts"), name)
    _add_perplexity(add("perplexity", "perplexity of the log-probabilities of tokens"))


def _add_files(parser: argparse.ArgumentParser, formats: str, references: str | int | None) -> None:
    parser.add_argument("outputs", metavar="OUTPUTS", help="file of the system's outputs")
    if references:
        parser.add_argument("references", metavar="REFERENCES", nargs=references, help="file of references")
    parser.add_argument("--against", metavar="OTHER", help="file of a second system, for the paired bootstrap test")
    parser.add_argument("--format", help=f"{formats} (default: by the suffix of each file, otherwise text)")
    parser.add_argument("--field", metavar="NAME", help="field of JSON lines that holds an output")
    if references:
        parser.add_argument("--reference-field", metavar="NAME", help="field of JSON lines that holds a reference")
    parser.add_argument("--resamples", type=count, default=1000, metavar="N", help="resamples of the bootstrap (1000)")
    parser.add_argument("--seed", type=count, default=0, metavar="N", help="seed of the bootstrap (0)")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    parser.add_argument("--out", help="file to write to, in addition to the screen")


def _add_rouge(parser: argparse.ArgumentParser) -> None:
    _add_files(parser, "text or jsonl", "+")
    parser.add_argument("--stemming", action="store_true", help="reduce words to their stems by Porter's algorithm")
    parser.add_argument(
        "--tokens", default="ascii", help="words of a-z and 0-9 as the script has them: ascii (default); or unicode"
    )
    parser.add_argument("--lcs", default="lines", help="sequences of ROUGE-L: lines (default) or whole")
    parser.add_argument("--combine", default="average", help="several references: average (default), best or jackknife")
    parser.add_argument("--limit", type=count, default=0, metavar="BYTES", help="bytes of an output that count (all)")
    parser.add_argument("--cut-references", action="store_true", help="cut the references at the limit as well")


def _add_error_rate(parser: argparse.ArgumentParser, metric: str) -> None:
    _add_files(parser, "text, jsonl or trn", 1)
    parser.add_argument("--alignment", help="levenshtein, or sclite (default for trn), which takes alternatives")
    parser.add_argument("--drop", metavar="WORD,...", help="words to leave out of both sides, such as %%hesitation")
    parser.add_argument("--case", default="lower", help="lower (default) or keep")
    if metric == "per":
        parser.add_argument("--split", default="spaces", help="a phone is between spaces (default), or letters")
        for name, default in (("stress", "drop"), ("length", "keep"), ("diacritics", "keep")):
            parser.add_argument(f"--{name}", default=default, help=f"drop or keep (default: {default})")
        return
    parser.add_argument("--punctuation", help="drop, or keep (default for trn)")
    if metric == "cer":
        parser.add_argument("--spaces", help="keep spaces between words as characters, or drop (default for trn)")


def _add_perplexity(parser: argparse.ArgumentParser) -> None:
    _add_files(parser, "text or jsonl", None)
    parser.add_argument("--log", default="e", metavar="BASE", help="base of the logarithms: e (default), 2 or 10")


def _run(arguments: argparse.Namespace) -> int:
    if not 1 <= arguments.resamples <= _MOST_RESAMPLES:
        raise BadInput(f"--resamples {arguments.resamples}: allowed: from 1 to {_MOST_RESAMPLES}")
    score = {"rouge": _rouge, "perplexity": _perplexity}.get(arguments.metric, _error_rate)
    result = score(arguments)
    text = json.dumps(result.as_json(), indent=2) if arguments.json else result.as_text()
    emit(f"{text}\n", arguments.out)
    return 0


COMMAND = Command("score", "score the outputs of any system: rouge, cer, wer, per or perplexity", _add_arguments, _run)


def _rouge(arguments: argparse.Namespace) -> Result:
    from vocabench.harness.metrics.rouge import Rouge
    from vocabench.harness.scoring import systems

    rule = Rouge(
        stemming=arguments.stemming,
        tokens=arguments.tokens,
        lcs=arguments.lcs,
        references=arguments.combine,
        limit=arguments.limit,
        cuts_references=arguments.cut_references,
    )
    return systems.rouge_scores(_request(arguments, ("summary", "summaries", "text")), rule)


def _error_rate(arguments: argparse.Namespace) -> Result:
    from vocabench.harness.scoring import samples, systems
    from vocabench.harness.scoring.error_rates import LEVENSHTEIN, SCLITE, ErrorRate
    from vocabench.harness.speech.phones import PhoneRule
    from vocabench.harness.speech.text import TextRule

    metric = arguments.metric
    request = _request(arguments, ("phones", "text") if metric == "per" else ("text",))
    alignment = arguments.alignment
    if alignment is None:
        is_trn = any(request.format_of(path) == samples.TRN for path in request.references)
        alignment = SCLITE if is_trn else LEVENSHTEIN
    as_sclite = alignment == SCLITE
    if metric == "per":
        phones = PhoneRule(arguments.split, arguments.stress, arguments.length, arguments.diacritics)
        texts = TextRule(arguments.case)
    else:
        phones = PhoneRule()
        punctuation = arguments.punctuation or ("keep" if as_sclite else "drop")
        spaces = (arguments.spaces if metric == "cer" else None) or ("drop" if as_sclite else "keep")
        texts = TextRule(arguments.case, punctuation, spaces)
    dropped = tuple(arguments.drop.split(",")) if arguments.drop else ()
    return systems.error_rates(request, ErrorRate(metric, alignment, texts, phones, dropped))


def _perplexity(arguments: argparse.Namespace) -> Result:
    from vocabench.harness.scoring import log_probabilities, systems
    from vocabench.impls.errors import unknown

    if arguments.log not in log_probabilities.BASES:
        raise unknown("base of logarithms", arguments.log, log_probabilities.BASES)
    field = arguments.field or log_probabilities.FIELD
    return systems.perplexities(_request(arguments, ()), field, arguments.log)


def _request(arguments: argparse.Namespace, fields: tuple[str, ...]) -> Request:
    from vocabench.harness.scoring.systems import Request

    reference_field = getattr(arguments, "reference_field", None)
    return Request(
        outputs=Path(arguments.outputs),
        references=tuple(Path(path) for path in getattr(arguments, "references", ())),
        against=None if arguments.against is None else Path(arguments.against),
        text_format=arguments.format,
        output_fields=(arguments.field,) if arguments.field else fields,
        reference_fields=(reference_field,) if reference_field else fields,
        resamples=arguments.resamples,
        seed=arguments.seed,
    )
