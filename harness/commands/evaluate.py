"""`vocabench eval`: compute the scores of a saved network again, in any framework."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocabench.harness.commands.command import Command, add_framework_filter, pairs
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.network_folder import SavedNetwork
    from vocabench.harness.tasks.shared.evaluation import HeldOut, Request, Scores

_PLACEHOLDER = "{framework}"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="folder that 'vocabench run -s save=FOLDER' has written")
    add_framework_filter(parser)
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--dataset", help="name of a dataset, or path of the data (default: that of the training)")
    parser.add_argument("--split", help="train, valid or test (default: the one that was scored after training)")
    parser.add_argument(
        "-s", "--set", action="append", default=[], metavar="NAME=VALUE", help="setting of decoding or of scores"
    )
    parser.add_argument(
        "--out",
        help=f"new .jsonl file for 'vocabench score': the log-probability of each word, or each output with its "
        f"references; the name may contain {_PLACEHOLDER}",
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness.tasks.shared.evaluation import Request

    return evaluate(
        Path(arguments.folder),
        Request(arguments.dataset, arguments.split, pairs(arguments.set, "--set")),
        frameworks=arguments.framework,
        device=arguments.device,
        out=arguments.out,
        as_json=arguments.json,
    )


COMMAND = Command("eval", "scores of a saved network, in any framework", _add_arguments, _run)


def evaluate(
    folder: Path,
    request: Request,
    *,
    frameworks: Sequence[str] | None,
    device: str,
    out: str | None,
    as_json: bool,
) -> int:
    """Evaluate a saved network in each framework, each in a process of its own, and print the scores.

    Args:
        folder: Folder of the network.
        request: The data.
        frameworks: Frameworks; None for all that are installed and train networks of its method.
        device: Device.
        out: File for `vocabench score`.
        as_json: Print a JSON object.

    Returns:
        0, or 1 if the process of a framework was killed.
    """
    from concurrent.futures.process import BrokenProcessPool

    from vocabench.harness import network_folder
    from vocabench.harness.measure.new_process import in_new_process
    from vocabench.harness.tasks.shared import evaluation

    saved = network_folder.load(folder)
    chosen = _frameworks(saved, frameworks)
    files = _files(out, chosen)
    task = evaluation.of_task(saved.cell.task, request)
    held_out = task.data(saved, request, lambda line: None)
    scores: dict[str, Scores] = {}
    for name in chosen:
        try:
            scores[name] = in_new_process(name, task.score, folder, name, device, held_out)
        except BrokenProcessPool:
            print(f"vocabench: {name}: its process was killed, perhaps for lack of memory", file=sys.stderr)
            return 1
        if name in files:
            _write(files[name], scores[name])
    print(json.dumps(_content(saved, held_out, scores), indent=2) if as_json else _as_text(saved, held_out, scores))
    return 0


def _frameworks(saved: SavedNetwork, names: Sequence[str] | None) -> list[str]:
    from vocabench.harness import registry

    if names is None:
        return [name for name in saved.frameworks if name != "numpy"] or saved.frameworks
    chosen = list(dict.fromkeys(registry.check_framework(name) for name in names))
    for name in chosen:
        if name not in saved.frameworks:
            allowed = ", ".join(saved.frameworks)
            raise BadInput(f"framework {name!r} has no {saved.spec.method}: allowed: {allowed}")
    return chosen


def _files(out: str | None, frameworks: Sequence[str]) -> dict[str, Path]:
    """Return the file to write in each framework, before anything is computed."""
    if out is None:
        return {}
    files = {name: Path(out.replace(_PLACEHOLDER, name)) for name in frameworks}
    if len(set(files.values())) < len(files):
        raise BadInput(
            f"--out {out} for {len(files)} frameworks: allowed: a name with {_PLACEHOLDER}, or one framework"
        )
    for path in files.values():
        if path.suffix != ".jsonl":
            raise BadInput(f"--out {path}: allowed: a name that ends in .jsonl")
        if path.exists() or not path.parent.is_dir():
            raise BadInput(f"--out {path}: it exists, or its folder does not: allowed: a new file")
    return files


def _write(path: Path, scores: Scores) -> None:
    from vocabench.harness.atomic_write import write_atomically

    write_atomically(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in scores.records))


def _content(saved: SavedNetwork, held_out: HeldOut, scores: dict[str, Scores]) -> dict[str, Any]:
    cell, first = saved.cell, next(iter(scores.values()))
    return {
        "network": {
            "method": cell.method,
            "options": dict(cell.options),
            "vocab": saved.spec.vocab,
            "trained_in": cell.framework,
            "precision": cell.precision,
            "seed": cell.seed,
            "dataset": cell.dataset,
            **saved.scores,
        },
        "text": {"dataset": held_out.name, "split": held_out.split, **held_out.details()},
        first.counted: first.count,
        **{quantity: {name: each.values[quantity] for name, each in scores.items()} for quantity in first.values},
    }


def _as_text(saved: SavedNetwork, held_out: HeldOut, scores: dict[str, Scores]) -> str:
    cell, first = saved.cell, next(iter(scores.values()))
    before = {quantity: value for quantity, value in saved.scores.items() if quantity != "split"}
    trained = f"{cell.method}, {saved.spec.vocab:,} words, trained in {cell.framework}"
    lines = [
        f"{trained}: {_values(before)} on {saved.scores['split']} of {cell.dataset}",
        f"now on {held_out.split} of {held_out.name}: {first.count:,} {first.counted}{held_out.remark}",
    ]
    width = max(map(len, scores))
    lines += [f"  {name:<{width}}  {_values(each.values)}" for name, each in scores.items()]
    return "\n".join(lines)


def _values(values: Mapping[str, float]) -> str:
    return ", ".join(f"{quantity} {value:.6g}" for quantity, value in values.items())
