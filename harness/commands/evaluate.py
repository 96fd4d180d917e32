"""`vocabench eval`: compute the perplexity of a saved network again, in any framework."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocabench.harness.commands.command import Command, add_framework_filter
from vocabench.impls.errors import BadInput

if TYPE_CHECKING:
    from vocabench.harness.network_folder import SavedNetwork
    from vocabench.harness.tasks.shared.evaluation import HeldOutText, TokenScores

_PLACEHOLDER = "{framework}"


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="folder that 'vocabench run -s save=FOLDER' has written")
    add_framework_filter(parser)
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda or cuda:1")
    parser.add_argument("--dataset", help="name of a dataset, or path of a text (default: that of the training)")
    parser.add_argument("--split", help="train, valid or test (default: the one that was scored after training)")
    parser.add_argument(
        "--out", help=f"new .jsonl file for the log-probability of each word; the name may contain {_PLACEHOLDER}"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object")


def _run(arguments: argparse.Namespace) -> int:
    return evaluate(
        Path(arguments.folder),
        frameworks=arguments.framework,
        device=arguments.device,
        dataset=arguments.dataset,
        split=arguments.split,
        out=arguments.out,
        as_json=arguments.json,
    )


COMMAND = Command("eval", "perplexity of a saved network, in any framework", _add_arguments, _run)


def evaluate(
    folder: Path,
    *,
    frameworks: Sequence[str] | None,
    device: str,
    dataset: str | None,
    split: str | None,
    out: str | None,
    as_json: bool,
) -> int:
    """Evaluate a saved network in each framework, each in a process of its own, and print the perplexities.

    Args:
        folder: Folder of the network.
        frameworks: Frameworks; None for all that are installed and train networks of its method.
        device, dataset, split: Device, and text as in `evaluation.text_of`.
        out: File for the log-probability of each word.
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
    text = evaluation.text_of(saved, dataset, split, lambda line: None)
    scores: dict[str, TokenScores] = {}
    for name in chosen:
        try:
            scores[name] = in_new_process(name, evaluation.evaluate, folder, name, device, text.ids_T)
        except BrokenProcessPool:
            print(f"vocabench: {name}: its process was killed, perhaps for lack of memory", file=sys.stderr)
            return 1
        if name in files:
            _write(files[name], scores[name], saved)
    content = _content(saved, text, scores)
    print(json.dumps(content, indent=2) if as_json else _as_text(content))
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


def _write(path: Path, scores: TokenScores, saved: SavedNetwork) -> None:
    from vocabench.harness.atomic_write import write_atomically

    records = ({"words": words, "log_probs": log_probs} for words, log_probs in scores.sentences(saved.words))
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in records))


def _content(saved: SavedNetwork, text: HeldOutText, scores: dict[str, TokenScores]) -> dict[str, Any]:
    cell = saved.cell
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
        "text": {"dataset": text.name, "split": text.split, "unknown_share": text.unknown},
        "tokens": next(iter(scores.values())).ids_BT.size,
        "perplexity": {name: each.perplexity for name, each in scores.items()},
    }


def _as_text(content: dict[str, Any]) -> str:
    network, text = content["network"], content["text"]
    before = f"perplexity {network['perplexity']:.6g} on {network['split']} of {network['dataset']}"
    lines = [
        f"{network['method']}, {network['vocab']:,} words, trained in {network['trained_in']}: {before}",
        f"now on {text['split']} of {text['dataset']}: {content['tokens']:,} words, "
        f"{100 * text['unknown_share']:.2g} % of them <unk>",
    ]
    width = max(map(len, content["perplexity"]))
    lines += [f"  {name:<{width}}  perplexity {value:.6g}" for name, value in content["perplexity"].items()]
    return "\n".join(lines)
