"""Compilers that compile no C++ kernel twice in a run of the tests, whichever of its processes asks.

Each process compiles the kernels for itself, which would be most of a run's time. What becomes of a source hangs on the
compiler, the flags, and the source's text together with that of all it includes.
"""

import fcntl
import hashlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

_KERNELS = Path(__file__).resolve().parent.parent / "impls" / "cpp"


def install(folder: Path) -> None:
    """This process, and those that it starts, find the compilers in `folder`, where they keep what they compile."""
    folder.mkdir()
    for name in ("g++", "clang++"):
        compiler = shutil.which(name)
        if compiler is not None:
            command = shlex.join([sys.executable, "-IS", __file__, str(folder), compiler])
            (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            (folder / name).chmod(0o755)
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ["PATH"]])


def run(folder: Path, compiler: str, arguments: Sequence[str]) -> int:
    """What the compiler returns, of a command that makes an object of a kernel's source."""
    *flags, source, _, made = arguments
    text = subprocess.run([compiler, *flags, "-E", "-P", source], capture_output=True).stdout
    said = [compiler, *_that_matter(flags)]
    kept = folder / hashlib.sha256("\0".join(said).encode() + text).hexdigest()
    with open(f"{kept}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another that compiles it is waited for
        if not kept.exists():
            if failed := subprocess.run([compiler, *arguments]).returncode:
                return failed
            shutil.copyfile(made, f"{kept}.part")
            os.rename(f"{kept}.part", kept)
            return 0
    shutil.copyfile(kept, made)
    return 0


def _that_matter(flags: Sequence[str]) -> Iterator[str]:
    """All flags but the folders of headers, whose text is known."""
    each = iter(flags)
    for flag in each:
        if flag == "-isystem":
            next(each)
        else:
            yield flag


def main() -> None:
    folder, compiler, *arguments = sys.argv[1:]
    match arguments:
        case [*flags, source, "-o", _] if "-c" in flags and Path(source).parent == _KERNELS:
            sys.exit(run(Path(folder), compiler, arguments))
    os.execv(compiler, [compiler, *arguments])


if __name__ == "__main__":
    main()
