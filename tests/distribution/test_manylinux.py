"""The manylinux tag of libraries is determined by the symbol versions that they need."""

import subprocess
from pathlib import Path

import pytest

from distribution import manylinux
from vocabench.impls import cpp

if cpp.compiler() is None:
    pytest.skip("needs Linux, an x86 processor with AVX2 and a C++ compiler", allow_module_level=True)


def compiled(folder: Path, text: str, *flags: str, name: str = "library.so") -> Path:
    """Compile a library without the system's own."""
    (folder / f"{name}.cpp").write_text(text)
    command = str(cpp.compiler()), "-shared", "-fPIC", "-nostdlib", f"{name}.cpp", *flags, "-o", name
    subprocess.run(command, cwd=folder, check=True, timeout=60, capture_output=True, text=True)
    return folder / name


def needing(folder: Path, library: str, *versions: str) -> Path:
    """Return a library that needs a function of each version from another library."""
    names = [f"function{number}" for number in range(len(versions))]
    script = folder / "versions"
    script.write_text("\n".join(f"{version} {{ {name}; }};" for name, version in zip(names, versions, strict=True)))
    definitions = "".join(f'extern "C" void {name}() {{}}\n' for name in names)
    compiled(folder, definitions, f"-Wl,--version-script={script}", f"-Wl,-soname,{library}", name=library)
    calls = "".join(f'extern "C" void {name}();\n' for name in names)
    body = "".join(f"{name}();" for name in names)
    return compiled(folder, f"{calls}void call() {{ {body} }}", "-L.", f"-l:{library}")


@pytest.mark.parametrize(
    ("library", "versions", "expected"),
    [
        ("libc.so.6", ["GLIBC_2.2.5"], "manylinux_2_17_x86_64"),
        ("libc.so.6", ["GLIBC_2.17", "GLIBC_2.29"], "manylinux_2_31_x86_64"),
        ("libstdc++.so.6", ["GLIBCXX_3.4", "GLIBCXX_3.4.29"], "manylinux_2_34_x86_64"),
        ("libstdc++.so.6", ["CXXABI_1.3.11"], "manylinux_2_27_x86_64"),
        ("libgcc_s.so.1", ["GCC_12.0.0"], "manylinux_2_35_x86_64"),
    ],
)
def test_the_tag_is_the_least_that_the_libraries_allow(tmp_path, library, versions, expected):
    made = needing(tmp_path, library, *versions)
    assert manylinux.needs(made) == ({library}, set(versions))
    assert manylinux.tag([made]) == expected


def test_versions_of_several_libraries_count_together(tmp_path):
    made = []
    for name, version in (("libm.so.6", "GLIBC_2.27"), ("libc.so.6", "GLIBC_2.17")):
        (tmp_path / name).mkdir()
        made.append(needing(tmp_path / name, name, version))
    assert manylinux.tag(made) == "manylinux_2_27_x86_64"


def test_a_tag_that_the_libraries_do_not_allow_is_refused(tmp_path):
    made = needing(tmp_path, "libc.so.6", "GLIBC_2.17", "GLIBC_2.34")
    assert manylinux.tag([made], "manylinux_2_36_x86_64") == "manylinux_2_36_x86_64"
    with pytest.raises(ValueError, match=r"tag 'manylinux_2_28_x86_64' does not allow GLIBC_2.34, which the libraries"):
        manylinux.tag([made], "manylinux_2_28_x86_64")


@pytest.mark.parametrize("version", ["GLIBC_2.99", "GLIBC_PRIVATE", "OTHER_1.0"])
def test_versions_that_no_tag_allows_are_refused(tmp_path, version):
    made = needing(tmp_path, "libc.so.6", version)
    with pytest.raises(ValueError, match=f"tag 'manylinux_2_41_x86_64' does not allow {version}, which the"):
        manylinux.tag([made])


def test_libraries_that_not_every_system_has_are_refused(tmp_path):
    made = needing(tmp_path, "libgomp.so.1", "GOMP_1.0")
    with pytest.raises(ValueError, match=r"library library.so needs libgomp.so.1: allowed: .*libstdc\+\+"):
        manylinux.tag([made])


def test_an_unknown_tag_is_refused(tmp_path):
    with pytest.raises(ValueError, match="tag 'manylinux_2_99_x86_64': allowed: manylinux_2_17_x86_64, "):
        manylinux.tag([], "manylinux_2_99_x86_64")


def test_a_file_that_is_no_library_is_refused(tmp_path):
    (tmp_path / "library.so").write_text("a text")
    with pytest.raises(ValueError, match=r"library .*library.so: allowed: ELF for x86-64"):
        manylinux.tag([tmp_path / "library.so"])
