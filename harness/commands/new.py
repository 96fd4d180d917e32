"""`vocabench new`: write the files of a new method, to start from."""

from __future__ import annotations

import argparse
import keyword
import re
import shlex
from pathlib import Path
from string import Template

from vocabench.harness.commands.command import Command
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.impls.errors import BadInput, unknown

_TEMPLATES = Path(__file__).resolve().parents[1] / "templates"
_NAME = re.compile(r"[a-z][a-z0-9_]*")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=["method"], help="what to write")
    parser.add_argument("name", help="its name, such as my_softmax")
    parser.add_argument("--folder", metavar="DIR", default=".", help="folder of the files (default: the current one)")
    parser.add_argument("-f", "--framework", metavar="NAME", help="the layer's framework (default: torch if installed)")


def _run(arguments: argparse.Namespace) -> int:
    return new_method(arguments.name, Path(arguments.folder), arguments.framework)


COMMAND = Command("new", "write the files of a new method, a full softmax to start from", _add_arguments, _run)


def new_method(name: str, folder: Path, framework: str | None) -> int:
    """Write the definition of a method and its layer in a framework below `folder`, where nothing is overwritten."""
    from vocabench.harness import registry

    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise BadInput(f"method {name!r}: allowed: lower-case letters, digits and '_', beginning with a letter")
    if name in registry.methods() or name in registry.extra_methods():
        raise BadInput(f"method {name!r} is there already: allowed: another name")
    known = [other for other in registry.frameworks() if other != "numpy"]
    if framework is None:
        framework = next((other for other in known if registry.is_installed(other)), known[0])
    if framework not in known:
        raise unknown("framework", framework, known)
    targets = {part: folder / "impls" / f"on_{part}" / "methods" / f"{name}.py" for part in ("numpy", framework)}
    for target in targets.values():
        if target.exists():
            raise BadInput(f"{target} is there already: allowed: another name or --folder")
    fields = {"name": name, "class_name": "".join(part.capitalize() for part in name.split("_"))}
    for part, target in targets.items():
        text = Template((_TEMPLATES / f"on_{part}.txt").read_text(encoding="utf-8")).substitute(fields)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.write(text)
        print(f"written: {target}")
    is_checkout = folder.resolve() == IMPORT_ROOT.resolve()
    plugin = "" if is_checkout else f"--plugin {shlex.quote(str(folder))} "
    print(f"next:    vocabench check {plugin}-m {name}")
    print(f"         vocabench run cpu {plugin}-f {framework} -m {name} -v 10000")
    return 0
