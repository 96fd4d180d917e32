"""asv environment that runs this interpreter on a checkout of each commit, without building or downloading anything.

asv's own `existing` environment does not support `asv continuous`, and its other environments build wheels and download
the frameworks for every commit. asv.conf.json names this module as a plugin.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from typing import Any

from asv import util
from asv.environment import Environment

from vocabench.harness import registry

_DISTRIBUTIONS = {"tensorflow": "tensorflow-cpu"}  # of frameworks whose package has another name


class Checkout(Environment):
    """Runs `sys.executable` with the commit's work tree first on the import path.

    A commit without the package `vocabench` must not import the installed one: see `benchmarks/_rows.py`.
    """

    tool_name = "checkout"

    def __init__(self, conf: Any, python: str, requirements: dict[str, str], tagged_env_vars: dict[Any, str]) -> None:
        # asv shows requirements in its results, and keeps results of different requirements apart.
        versions = {name: _version(_DISTRIBUTIONS.get(name, name)) for name in registry.installed_frameworks()}
        requirements = {**requirements, **{name: version for name, version in versions.items() if version}}
        python_version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self._python, self._requirements = python_version, requirements  # the base class reads them before setting them
        super().__init__(conf, python_version, requirements, tagged_env_vars)

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
