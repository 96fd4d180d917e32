"""The C++ kernels, compiled in other ways than for the processor at hand."""

import itertools
import shutil

import pytest

from impls import cpp


@pytest.fixture(params=itertools.product(("g++", "clang++"), ("native", "haswell")), ids="-".join, scope="module")
def compiled_otherwise(request):
    """By either compiler, for the processor at hand, and for any with AVX2 and 16 registers."""
    compiler, processor = request.param
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    assert "-march=native" in cpp._COMPILE
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CXX", compiler)
        patch.setattr(cpp, "_COMPILE", tuple(flag.replace("native", processor) for flag in cpp._COMPILE))
        cpp.library.cache_clear()
        assert cpp.library("for_ctypes", ("-DTHREADS_OF_OPENMP",)) is not None
        yield
        cpp.library.cache_clear()
