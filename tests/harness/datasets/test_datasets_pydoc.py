"""Text from docstrings: the rules for English, and the corpus of the standard library."""

import subprocess
import sys

import pytest

from tests import ROOT
from vocabench.harness.datasets.shared import catalogue
from vocabench.harness.datasets.text import corpora
from vocabench.harness.datasets.text.docstring_text import DocstringText
from vocabench.harness.datasets.text.docstrings import paragraphs, paragraphs_of_file
from vocabench.impls.errors import BadInput


def test_prose_is_kept_and_markup_is_removed():
    (paragraph,) = paragraphs(
        "Return ``True`` if :func:`os.path.exists` says, e.g. at https://x.org/a, that 12 of *it* are."
    )
    assert paragraph == "return true if os path exists says , eg at that <num> of it are ."


@pytest.mark.parametrize(
    "docstring",
    [
        ">>> print('the one and only thing to do for it')\nthe one and only thing to do for it",
        "def f(a): the function of that is to be in it",
        ".. deprecated:: 1.2\n   Use the other one, for it is to be preferred.",
        "=====  =====\nthe    of\n=====  =====\na      to be in that for it\n=====  =====",
        "| the | of | to |\n| a b | in the that | is it |",
        "x = f(the) + g(of) ** 2; y[0] = {to: is}; z(in_the, a_of)",
        "Alpha, Beta, Gamma, Delta, Epsilon, Zeta, Eta, Theta",
        "Too short for the rule.",
    ],
)
def test_text_that_is_not_prose_is_dropped(docstring):
    assert paragraphs(docstring) == []


def test_a_literal_block_ends_with_its_indentation():
    blocks = [
        "Call it as it is written here::",
        "    the code of it is not for a reader",
        "This is text that follows it.",
    ]
    assert paragraphs("\n\n".join(blocks)) == [
        "call it as it is written here :",
        "this is text that follows it .",
    ]


@pytest.mark.parametrize(
    "docstring",
    [
        "Parameters\n----------\nname : array_like, optional\n    The first of the numbers that are to be added.",
        "Args:\n  name (int): The first of the numbers\n    that are to be added.",
        "Args:\n  name: The first of the numbers that are to be added.",
        ":param name: The first of the numbers that are to be added.",
        "- The first of the numbers that are to be added.",
        "Raises:\n  ValueError:\n    The first of the numbers that are to be added.",
    ],
)
def test_descriptions_are_kept_without_the_names_they_describe(docstring):
    assert paragraphs(docstring) == ["the first of the numbers that are to be added ."]


def test_modules_are_parsed_and_never_executed(tmp_path):
    source = tmp_path / "module.py"
    source.write_text(
        '"""The module that is not to be run by anyone."""\n'
        "raise SystemExit\n"
        "def f():\n"
        "    '''A function in it that is not to be called.'''\n"
        "add_docstr(f, 'The text that is given to a function by a call.')\n"
        "x = 'the string that is no docstring of any kind'\n"
    )
    assert len(paragraphs_of_file(str(source))) == 3
    for broken in (b"def (", b"\xff\xfe\0", b'"""nul \0 byte"""'):
        source.write_bytes(broken)
        assert paragraphs_of_file(str(source)) == []
    assert paragraphs_of_file(str(tmp_path / "absent.py")) == []


@pytest.fixture(scope="module")
def small():
    return corpora.load("pydoc-small")


@pytest.mark.lengthy
def test_the_corpus_of_the_standard_library_has_the_expected_size(small):
    assert set(small.splits) == {"train", "valid", "test"}
    assert len(small.splits["train"]) > 100_000
    assert min(len(small.splits["valid"]), len(small.splits["test"])) > 3_000
    assert small.words[0] == "the"
    assert {"<unk>", "<eos>", "function", "returns"} <= set(small.words)
    assert small.counts_V[small.words.index("<unk>")] < 0.05 * small.counts_V.sum()
    assert small.versions == {"python": ".".join(map(str, sys.version_info[:3]))}
    assert small.licence


@pytest.mark.lengthy
def test_no_paragraph_is_in_two_splits(few_files):
    text = corpora.find("pydoc-small")
    lines = [line for path in text.files.values() for line in path.read_text().splitlines()]
    assert len(lines) == len(set(lines)) > 300
    contents = {split: path.read_bytes() for split, path in text.files.items()}
    text.files["train"].write_bytes(b"damaged")
    with pytest.raises(BadInput, match="is not here, or is damaged"):
        catalogue.verify("pydoc-small", print)
    assert {split: path.read_bytes() for split, path in corpora.find("pydoc-small").files.items()} == contents
    assert len(catalogue.verify("pydoc-small", print)) == 64


def test_missing_packages_are_left_out():
    versions = DocstringText("x", ("python", "no_such_package", "numpy"), "").versions()
    assert list(versions) == ["python", "numpy"]


def test_a_script_without_a_main_guard_builds_the_corpus_once(tmp_path):
    script = (
        "import vocabench.harness.datasets.shared.package_sources as p\n"
        "real = p.source_files\n"
        "p.source_files = lambda package: iter(list(real(package))[:20])\n"
        "from vocabench.harness.datasets.text import corpora\n"
        "print('lines', len(corpora.find('pydoc-small').files['train'].read_text().splitlines()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PYTHONPATH": str(ROOT), "VOCABENCH_CACHE": str(tmp_path), "PATH": ""},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("lines") == 1
