"""The commands that messages give for packages that are missing."""

from __future__ import annotations

from pathlib import Path

from vocabench.harness.import_root import IMPORT_ROOT

EXTRAS = {  # the extra of this distribution that installs a package, by the package's name on the index
    "torch": "torch",
    "tensorflow-cpu": "tensorflow",
    "jax": "jax",
    **dict.fromkeys(("babel", "espeakng-loader", "soundfile"), "speech"),
    **dict.fromkeys(("gensim", "fasttext-wheel", "scikit-learn"), "word-vectors"),
    "ray": "ray",
}


def pip_install(*packages: str) -> str:
    """Return the command that installs `packages`.

    Packages of an extra are installed by that extra, with the versions that it asks for. In a checkout the command
    installs the checkout itself, with the exact versions that it is tested with.
    """
    extras = dict.fromkeys(EXTRAS[package] for package in packages if package in EXTRAS)
    others = [package for package in packages if package not in EXTRAS]
    pinned, itself = [], "vocabench"
    if (IMPORT_ROOT / "constraints.txt").is_file():
        folder = "" if Path.cwd() == IMPORT_ROOT.resolve() else f"{IMPORT_ROOT}/"
        pinned, itself = [f"-c {folder}constraints.txt"], folder.rstrip("/") or "."
    requirement = [f'"{itself}[{",".join(extras)}]"'] if extras else []
    return " ".join(["pip install", *pinned, *requirement, *others])
