"""The command `vocabench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from vocabench.harness import numerals
from vocabench.impls.errors import BadInput

OK, DISAGREES, BAD_USAGE = 0, 1, 2
STOPPED, NOT_READ = 130, 141  # as shells say it: 128 and the number of the signal


class _Once(argparse.Action):
    """Takes a value once: of two, the first would go without a word."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        given = vars(namespace).setdefault("given", set())
        if self.dest in given:
            parser.error(f"{option} is given twice: allowed: once")
        given.add(self.dest)
        setattr(namespace, self.dest, values)


class _Parser(argparse.ArgumentParser):
    """One line for a mistake, in place of the whole usage."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.register("action", None, _Once)

    def error(self, message: str) -> None:  # type: ignore[override]
        raise BadInput(f"{message} (see '{self.prog} --help')")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 1 something disagrees or failed, 2 bad usage or bad input."""
    try:
        parsed = _parser().parse_args(_checked(sys.argv[1:] if arguments is None else arguments))
        code = parsed.command(parsed)
        sys.stdout.flush()  # here, where what goes wrong can still be told
        return code
    except BadInput as error:
        return _refused(f" {error}")
    except BrokenPipeError:  # whoever reads has read enough
        _drop_what_cannot_be_written()
        return NOT_READ
    except OSError as error:
        _drop_what_cannot_be_written()
        where = f" {error.filename}:" if error.filename else ""
        return _refused(f"{where} {error.strerror or error}")
    except KeyboardInterrupt:
        print("vocabench: stopped; the same command goes on where it was", file=sys.stderr)
        return STOPPED


def _checked(arguments: Sequence[str]) -> Sequence[str]:
    for argument in arguments:
        if "\0" in argument or any("\ud800" <= sign <= "\udfff" for sign in argument):
            raise BadInput(f"argument {argument!r}: allowed: UTF-8 without NUL")
    return arguments


def _drop_what_cannot_be_written() -> None:
    """Or Python tries once more at exit, and complains in several lines."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _refused(reason: str) -> int:
    """One line, whatever a name or a value that it quotes holds."""
    line = "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in f"vocabench:{reason}")
    print(line, file=sys.stderr)
    return BAD_USAGE


def entry() -> None:
    """The installed command."""
    sys.exit(main())


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="vocabench", description="Benchmark output layers over large vocabularies across frameworks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", parser_class=_Parser)

    def command(name: str, function: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=function)
        sub.register("type", None, _text)
        return sub

    run = command("run", _run, "measure a suite; the same command again resumes")
    run.add_argument("suite", nargs="?", default="quick", help="see 'vocabench list suites' (default: quick)")
    _filters(run)
    run.add_argument("--device", help="cpu (default), cuda or cuda:1")
    run.add_argument("--precision", action="append", help="float32, tf32, float64 or bfloat16; may be repeated")
    run.add_argument("--dataset", help="a dataset's name, or a text file or folder, in place of the suite's")
    run.add_argument("--seed", type=_whole, help="in place of the suite's")
    run.add_argument("-o", "--option", action="append", default=[], metavar="NAME=VALUE", help="a method's option")
    run.add_argument("-s", "--set", action="append", default=[], metavar="NAME=VALUE", help="a task's setting")
    run.add_argument("--out", help="results file (default: results/local/SUITE-CODE.jsonl)")
    run.add_argument("--retry", action="store_true", help="measure cells again that failed or were skipped")
    run.add_argument("--executor", choices=["local", "ray"], default="local", help="this machine, or a Ray cluster")
    run.add_argument("--address", help="the cluster's HOST:PORT (default: the one that runs here, else a new one)")
    run.add_argument("--cores", type=_whole, metavar="N", help="cores of a cell on the cluster (default: a whole node)")

    check = command("check", _check, "numerical agreement of every method and framework; exit 1 where one disagrees")
    check.add_argument("-f", "--framework", action="append")
    check.add_argument("-m", "--method", action="append")
    check.add_argument("--precision", action="append")
    check.add_argument("--device")
    check.add_argument("--out", help="results file (default: a new one below results/local)")

    table = command("table", _table, "the comparison, from stored rows")
    table.add_argument("--run", action="append", help="results file (default: the one written last)")
    table.add_argument(
        "--against", choices=["published"], help="papers' figures with ours beside them; --run may be repeated"
    )
    table.add_argument("--format", default="markdown", help="markdown, latex, csv, json or html")
    table.add_argument("--out", help="write to this file as well as to the screen")
    table.add_argument("--plot", metavar="FILE", help="draw speed against vocabulary to this svg, png or pdf file")
    table.add_argument("--clusters", type=_count, default=0, metavar="N", help="print N learned word clusters too")
    table.add_argument("--examples", type=_count, default=0, metavar="N", help="print N summaries of each system too")
    _filters(table)

    report = command("report", _report, "one HTML page of stored rows, which opens offline")
    report.add_argument("--run", action="append", help="results file; may be repeated (default: the one written last)")
    report.add_argument("--out", default="report.html", help="the page (default: report.html)")
    report.add_argument("--title", help="its heading (default: the runs' names)")

    publish = command("publish", _publish, "copy a run's rows to results/, where they are committed")
    publish.add_argument("run", help="results file")
    publish.add_argument("--as", dest="name", metavar="NAME", help="results/NAME.jsonl (default: the run's own name)")
    publish.add_argument("--allow-dirty", action="store_true", help="rows of code that no commit holds, too")
    publish.add_argument("--replace", action="store_true", help="in place of rows published under that name")

    export = command("export", _export, "write rows, made on any machine, to the history that asv keeps")
    export.add_argument("run", nargs="+", help="results file")
    export.add_argument("--machine", metavar="NAME", help="the machine's name there (default: of processor and GPU)")
    export.add_argument("--out", default="results/asv/results", help="asv's results_dir (default: %(default)s)")

    compare = command("compare", _compare, "whether run B is worse than run A; exit 0 no, 1 yes, 3 nothing to compare")
    compare.add_argument("before", metavar="A", help="results file, or a folder of them: runs of the same code")
    compare.add_argument("after", metavar="B", help="likewise")
    compare.add_argument("--frameworks", metavar="X,Y", help="whether framework X became worse next to Y")
    compare.add_argument("--threshold", type=_number, default=0.05, help="least change of times and memory (0.05)")
    compare.add_argument("--quality-threshold", type=_number, default=0.01, help="least change of all else (0.01)")
    compare.add_argument("--strict", action="store_true", help="what B lacks counts as worse")
    compare.add_argument("--format", default="markdown", help="markdown or json")
    compare.add_argument("--out", help="write to this file as well as to the screen")

    data = command("data", _data, "list, get or verify datasets")
    data.add_argument("action", choices=["list", "get", "verify"])
    data.add_argument("name", nargs="?", help="a dataset; all that are here for verify")

    listing = command("list", _list, "what there is")
    listing.add_argument("kind", choices=["methods", "frameworks", "tasks", "datasets", "suites"])

    command("info", _info, "versions, devices, what is missing and how to install it")
    return parser


def _text(text: str) -> str:
    """What an argument is that is no number. Empty, as a variable that is not set, it would stand for the default."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty: allowed: text, or to leave it out")
    return text


def _numeral(read: Callable[[str], float], allowed: str) -> Callable[[str], float]:
    """What an argument is that is a number, by one of `numerals`."""

    def convert(text: str) -> float:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r}: allowed: {allowed}") from None

    return convert


_whole = _numeral(numerals.whole, "a whole number")
_count = _numeral(numerals.count, "a whole number from 0")
_number = _numeral(numerals.number, "a number")


def _filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--framework", action="append", help="only this framework; may be repeated")
    parser.add_argument("-m", "--method", action="append", help="only this method; may be repeated")
    parser.add_argument("-v", "--vocab", action="append", type=_whole, help="this vocabulary size; may be repeated")
    parser.add_argument("-t", "--task", action="append", help="only this task; may be repeated")


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.run import run
    from vocabench.harness.run.cells import Selection

    selection = Selection(
        frameworks=arguments.framework,
        methods=arguments.method,
        vocab=arguments.vocab,
        tasks=arguments.task,
        device=arguments.device,
        precision=arguments.precision,
        dataset=arguments.dataset,
        seed=arguments.seed,
        options=_pairs(arguments.option, "--option"),
        settings=_pairs(arguments.set, "--set"),
    )
    return run(
        arguments.suite,
        selection,
        out=arguments.out,
        retry=arguments.retry,
        executor=arguments.executor,
        address=arguments.address,
        cores=arguments.cores,
    )


def _check(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.check import check
    from vocabench.harness.run.cells import Selection

    selection = Selection(
        frameworks=arguments.framework,
        methods=arguments.method,
        precision=arguments.precision,
        device=arguments.device,
    )
    return check(selection, out=arguments.out)


def _table(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.table import against_published, table
    from vocabench.harness.report.rows import Filter

    kept = Filter(frameworks=arguments.framework, methods=arguments.method, vocab=arguments.vocab, tasks=arguments.task)
    if arguments.against:
        if arguments.clusters or arguments.examples or arguments.plot:
            raise BadInput("--against published has no plot, clusters or examples: allowed: --run, --format and --out")
        return against_published(arguments.run, arguments.format, kept, out=arguments.out)
    return table(
        arguments.run,
        arguments.format,
        kept,
        clusters=arguments.clusters,
        examples=arguments.examples,
        out=arguments.out,
        plot=arguments.plot,
    )


def _report(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.report import report

    return report(arguments.run, out=arguments.out, title=arguments.title)


def _publish(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.publish import publish

    return publish(arguments.run, arguments.name, allow_dirty=arguments.allow_dirty, replace=arguments.replace)


def _export(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.export import export

    return export(arguments.run, machine=arguments.machine, out=arguments.out)


def _compare(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.compare import compare
    from vocabench.harness.compare.gate import Limits

    return compare(
        arguments.before,
        arguments.after,
        frameworks=arguments.frameworks,
        limits=Limits(cost=arguments.threshold, quality=arguments.quality_threshold),
        strict=arguments.strict,
        form=arguments.format,
        out=arguments.out,
    )


def _data(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.data import data

    return data(arguments.action, arguments.name)


def _list(arguments: argparse.Namespace) -> int:
    from vocabench.harness import registry

    names = {
        "methods": registry.methods,
        "frameworks": registry.frameworks,
        "tasks": registry.tasks,
        "datasets": registry.datasets,
        "suites": registry.suites,
    }[arguments.kind]()
    print("\n".join(names))
    return OK


def _info(arguments: argparse.Namespace) -> int:
    from vocabench.harness.commands.info import info

    return info()


def _pairs(texts: Sequence[str], flag: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise BadInput(f"{flag} {text!r}: allowed: NAME=VALUE")
        if name in pairs:
            raise BadInput(f"{flag} {name} is given twice: allowed: once")
        pairs[name] = value
    return pairs


if __name__ == "__main__":
    entry()
