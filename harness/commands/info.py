"""`vocabench info`: versions and devices, and how to install what is missing."""

from __future__ import annotations

import argparse
import json
from typing import Any

from vocabench.harness.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def _run(arguments: argparse.Namespace) -> int:
    facts = describe()
    print(json.dumps(facts, indent=1) if arguments.json else _as_text(facts))
    return 0


COMMAND = Command("info", "versions and devices, and how to install what is missing", _add_arguments, _run)


def describe() -> dict[str, Any]:
    """Return the code, the machine, the versions of libraries, and what each framework has.

    A framework has a "status": "installed" with its "devices", each with facts such as versions; "missing" with the
    command to "install" it; or "broken" with a "message".
    """
    from vocabench.harness import registry
    from vocabench.harness.run import provenance

    return {
        "code": dict(provenance.code()),
        "machine": dict(provenance.machine()),
        "versions": provenance.versions(),
        "frameworks": {framework: _framework(framework) for framework in registry.frameworks()},
    }


def _framework(name: str) -> dict[str, Any]:
    from vocabench.harness import registry
    from vocabench.harness.run import devices, pool

    if not registry.is_installed(name):
        return {"status": "missing", "install": registry.install_line(name)}
    try:
        return {"status": "installed", "devices": devices.describe(name)["describe"]}
    except (pool.WorkerDied, TimeoutError) as error:
        return {"status": "broken", "message": str(error)}


def _as_text(facts: dict[str, Any]) -> str:
    code, machine = facts["code"], facts["machine"]
    packages = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    memory = f"{machine['memory_bytes'] / 2**30:.1f} GiB"
    lines = [
        f"code        {code['commit'] or '(no checkout)'}{' (changed)' if code['dirty'] else ''}",
        "machine     " + ", ".join([machine["cpu"], *machine["instruction_sets"], f"{machine['cores']} cores", memory]),
        f"python      {machine['python']}, {packages}",
    ]
    for name, framework in facts["frameworks"].items():
        match framework["status"]:
            case "missing":
                lines.append(f"{name:<12}missing: {framework['install']}")
            case "broken":
                lines.append(f"{name:<12}installed, but does not start: {framework['message']}")
            case _:
                for device, values in framework["devices"].items():
                    shown = ", ".join(f"{key} {value}" for key, value in values.items())
                    lines.append(f"{name:<12}{device}: {shown}")
    return "\n".join(lines)
