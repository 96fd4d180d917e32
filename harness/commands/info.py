"""`vocabench info`: versions and devices, and how to install what is missing."""

from __future__ import annotations

import argparse

from vocabench.harness.commands.command import Command


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add nothing: the command has no arguments."""


def _run(arguments: argparse.Namespace) -> int:
    from vocabench.harness import registry
    from vocabench.harness.run import pool, provenance

    code, machine = provenance.code(), provenance.machine()
    print(f"code        {code['commit'] or '(no checkout)'}{' (changed)' if code['dirty'] else ''}")
    print(f"machine     {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.1f} GiB")
    packages = ", ".join(f"{name} {version}" for name, version in provenance.versions().items())
    print(f"python      {machine['python']}, {packages}")
    for framework in registry.frameworks():
        if not registry.is_installed(framework):
            print(f"{framework:<12}missing: {registry.install_line(framework)}")
            continue
        try:
            answer = pool.describe(framework)
        except (pool.WorkerDied, TimeoutError) as error:
            print(f"{framework:<12}installed, but does not start: {error}")
            continue
        for device, facts in answer["describe"].items():
            print(f"{framework:<12}{device}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    return 0


COMMAND = Command("info", "versions and devices, and how to install what is missing", _add_arguments, _run)
