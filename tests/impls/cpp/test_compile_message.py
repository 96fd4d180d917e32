"""The first compilation says what takes so long."""

from vocabench.impls import cpp
from vocabench.impls.cpp import compilation


def test_compiling_says_what_it_does_and_how_long_it_takes(monkeypatch, tmp_path, capsys):
    commands = []
    monkeypatch.setattr(compilation, "run", lambda *command: commands.append(command))
    monkeypatch.setattr(cpp.cpus, "usable", lambda: 2)
    cpp._compile_kernels("/usr/bin/g++", tmp_path)
    assert commands
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err == "vocabench: compiling the C++ kernels for this processor with g++: about 20 s, once\n"
