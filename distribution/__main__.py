"""Write the wheel with compiled C++ kernels, for machines without a compiler.

python -m distribution [--out FOLDER] [--tag TAG] [--frameworks NAME ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from distribution import libraries, manylinux, wheel
from vocabench.impls import cpp
from vocabench.impls.cpp import prebuilt

ROOT = Path(__file__).parents[1]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser("python -m distribution", description=str(__doc__).partition("\n")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the wheel (default: dist)")
    parser.add_argument("--tag", default="", help="platform tag (default: the least that the libraries allow)")
    parser.add_argument(
        "--frameworks",
        nargs="+",
        choices=libraries.FRAMEWORKS,
        default=list(libraries.FRAMEWORKS),
        help="frameworks whose kernels the wheel holds (default: all)",
    )
    given = parser.parse_args(arguments)
    try:
        print(write(given.frameworks, given.tag, given.out))
    except (OSError, ValueError, ImportError, subprocess.SubprocessError) as error:
        print(f"{parser.prog}: {error!s}\n{getattr(error, 'stderr', None) or ''}".rstrip(), file=sys.stderr)
        return 2
    return 0


def write(frameworks: list[str], tag: str, out: Path) -> Path:
    """Write the wheel and return its path.

    Raises:
        ValueError: There is no compiler, a framework has another version than in constraints.txt, or the libraries need
            more than the tag allows.
    """
    compiler = cpp.compiler()
    if compiler is None:
        raise ValueError("no C++ compiler: allowed: g++, or another one that CXX names, under Linux on x86 with AVX2")
    interfaces = [libraries.interface(framework, ROOT / "constraints.txt") for framework in frameworks]
    with tempfile.TemporaryDirectory() as scratch:
        folder, package = Path(scratch) / "libraries", Path(scratch) / "package"
        folder.mkdir()
        libraries.build(compiler, interfaces, prebuilt.LEVELS, folder)
        platform = manylinux.tag(folder.glob("*.so"), tag)
        return wheel.with_libraries(wheel.pure(ROOT, package), folder, platform, out)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
