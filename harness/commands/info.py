"""`vocabench info`: what is here, what is missing, and the line that installs it."""

from __future__ import annotations

from vocabench.harness import registry
from vocabench.harness.run import pool, provenance


def info() -> int:
    code, machine = provenance.code(), provenance.machine()
    print(f"code        {code['commit'] or '(no checkout)'}{' (changed)' if code['dirty'] else ''}")
    print(f"machine     {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / 2**30:.1f} GiB")
    print(f"python      {machine['python']}, " + ", ".join(f"{n} {v}" for n, v in provenance.versions().items()))
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
