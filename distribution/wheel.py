"""The wheel of the package, with compiled libraries added to it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

_PLACE = "vocabench/impls/cpp/libraries"  # `prebuilt.FOLDER` of an installation


def pure(root: Path, out: Path) -> Path:
    """Build the wheel of a checkout without compiled libraries, by way of the sdist, and return its path.

    Raises:
        subprocess.CalledProcessError: The build fails.
    """
    command = sys.executable, "-P", "-m", "build", "--no-isolation", "--outdir", str(out), str(root)
    subprocess.run(command, check=True, capture_output=True, text=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def with_libraries(wheel: Path, libraries: Path, platform: str, out: Path) -> Path:
    """Write a copy of a wheel with the files of `libraries` and a platform tag, and return its path.

    Args:
        wheel: A wheel without compiled libraries.
        libraries: A folder as `libraries.build` writes it.
        platform: The tag, such as "manylinux_2_34_x86_64".
        out: Folder of the new wheel.
    """
    with tempfile.TemporaryDirectory() as scratch:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(scratch)
        shutil.copytree(libraries, Path(scratch) / _PLACE)
        (description,) = Path(scratch).glob("*.dist-info/WHEEL")
        text = description.read_text(encoding="utf-8")
        text = re.sub("^Root-Is-Purelib: true$", "Root-Is-Purelib: false", text, flags=re.MULTILINE)
        # The libraries are called without Python's C interface, so they fit any version of Python.
        text = re.sub("^Tag: py3-none-any$", f"Tag: py3-none-{platform}", text, flags=re.MULTILINE)
        description.write_text(text, encoding="utf-8")
        out.mkdir(parents=True, exist_ok=True)
        command = sys.executable, "-P", "-m", "wheel", "pack", "--dest-dir", str(out), scratch
        subprocess.run(command, check=True, capture_output=True, text=True)
    return out / wheel.name.replace("-any.whl", f"-{platform}.whl")
