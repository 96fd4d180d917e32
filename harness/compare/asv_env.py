"""An asv environment that is this interpreter, with a checkout of each commit: no build, no download.

asv's own `existing` environment cannot run `asv continuous`, and its others build wheels and fetch the frameworks anew
for every commit. Named as a plugin in asv.conf.json.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Any

from asv import util
from asv.environment import Environment

from vocabench.harness import registry

_SHOWN = {"torch": "torch", "tensorflow": "tensorflow-cpu", "jax": "jax"}


class Checkout(Environment):
    """Runs `sys.executable` on a work tree of the commit, by PYTHONPATH."""

    tool_name = "checkout"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict[Any, str]) -> None:
        # Versions as requirements show in asv's results, and rows over other versions are kept apart.
        found = {name: _version(_SHOWN.get(name, name)) for name in registry.installed_frameworks()}
        requirements = {**requirements, **{name: version for name, version in found.items() if version}}
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self._python, self._requirements = version, requirements  # the base class reads them before it sets them
        super().__init__(conf, version, requirements, tagged_env_vars)

    @classmethod
    def matches(cls, python: str) -> bool:
        return True

    def check_presence(self) -> bool:
        return os.path.isdir(self._path)

    def _setup(self) -> None:
        os.makedirs(self._path, exist_ok=True)

    def install_project(self, conf: Any, repo: Any, commit_hash: str) -> None:
        self.checkout_project(repo, commit_hash)

    def find_executable(self, executable: str) -> str:
        return sys.executable if executable == "python" else util.which(executable)

    def run(self, args: list[str], **kwargs: Any) -> Any:
        env = dict(kwargs.pop("env", None) or os.environ)
        env |= {"PYTHONPATH": self._build_root, "ASV_PYTHONPATH": self._build_root}
        return util.check_output([sys.executable, *args], env=env, **kwargs)


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
