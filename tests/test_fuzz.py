"""Arbitrary data and arguments: every command ends with one of its exit codes, and a refusal is one clear line.

Nothing is measured here: cells that `run` would measure are skipped at once.
"""

import contextlib
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from vocabench.harness import cli, layer_file, layers, registry
from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.speech import speech_corpora
from vocabench.harness.datasets.text import corpora
from vocabench.harness.metrics import word_vectors
from vocabench.harness.run import pool
from vocabench.harness.run.cells import Cell
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Table, Words, read_table, read_words
from vocabench.impls.structures import wordnet

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def working_folder(tmp_path_factory):
    """An empty current folder and cache, in which cells take no time."""

    def run(cells, store, *, deadline, progress):
        for cell in cells:
            row = pool.failed(cell, "skipped", "not measured here")
            store.append(row)
            yield row

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("fuzz")
        patch.chdir(folder)
        patch.setenv("VOCABENCH_CACHE", str(folder / "cache"))
        patch.delenv("VOCABENCH_DATA", raising=False)
        patch.setattr(pool, "run", run)
        yield folder


def outcome(*arguments):
    """Return the exit code of a command and its error output, which is one line if the code is 2."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.main(list(map(str, arguments)))
        out.flush()
        err.flush()
    errors = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert code in (0, 1, 2, 3)
    if code == 2:
        (line,) = errors.splitlines()
        assert line.startswith("vocabench: "), line
    return code, errors


# Values of every JSON type, most of them of the wrong type for their place.
numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([0, -1, 1e308, -1e-308, 10**400, True]))
words = st.one_of(st.text(max_size=5), st.sampled_from(["", "\ud800", "\n", "|", "<b>", "NaN", "full_softmax", "a\0b"]))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, words),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=6,
)


def _row(number, task, method, quantity, **more):
    options = {"projection": "none"} if method == "sohsm" else {}
    cell = Cell(
        "quick", task, "torch", method, 100, 8, 64, "cpu", "float32", number, "mine", options=options, settings=SETTINGS
    )
    measurement = {
        "quantity": quantity, "value": 2.5, "unit": "1", "better": "lower", "samples": [2.0, 3.0], "low": 2.0,
        "high": 3.0, "ratio": None, "detail": {"split": "test"}, **more,
    }  # fmt: skip
    train = {"quantity": "train_seconds", "value": 3.0, "unit": "s", "better": "lower", "samples": [3.0], "detail": {}}
    return {
        "schema": 1, "key": cell.key, "cell": cell.to_json(), "status": "ok", "message": "",
        "measurements": [measurement, train], "agreement": {"verdict": "agree", "disagreements": []},
        "provenance": {"code": {"commit": "c0ffee", "dirty": False}, "started": "2026-01-01", "seconds": 1.5},
    }  # fmt: skip


SETTINGS = {"split": "test", "objective": "cbow", "units": "characters"}
RATIO = {"value": 1.5, "low": 1.2, "high": 1.8, "samples": [1.2, 1.8], "baseline_samples": [3.0, 4.5]}
CURVE = [{"step": 1, "perplexity": 9.0}, {"step": 2, "perplexity": 7.0}]
CHANGES = [{"step": 1, "perplexity_before": 9.5, "perplexity_after": 9.0}]
COUNTS = [[1, 0, 0, 9], [0, 1, 2, 8]]
HEARD = [{"id": "1", "language": "ba", "reference": "a", "ours": "b"}]
READ = [{"text": "a b", "summaries": ["a"], "ours": "b"}]
PARTS = [
    {"utterances": 4, "units_per_utterance": units, "audio_seconds": 3.0, "decode_seconds": 0.1} for units in (5.5, 9.0)
]
LEARNED = {"curve": CURVE, "reorganizations": CHANGES, "clusters": [["a"]]}
ROWS = [
    _row(number, task, method, quantity, **more)
    for number, (task, quantity, more) in enumerate((
        ("timing", "layer_seconds", {"unit": "s", "ratio": RATIO}),
        ("timing", "peak_bytes", {"unit": "B"}),
        ("timing", "topk_seconds", {"unit": "s", "ratio": RATIO}),
        ("agreement", "agreement_error", {}),
        ("language_modelling", "perplexity", {"detail": LEARNED}),
        ("summarization", "rouge1_f1", {"better": "higher", "detail": {"examples": READ}}),
        ("speech", "cer", {"detail": {"counts": COUNTS, "examples": HEARD, "languages": {"ba": {"value": 0.1}}}}),
        ("speech", "rtf", {"detail": {"by_length": PARTS}}),
        ("word_vectors", "perplexity", {"detail": {"curve": [{"epoch": 1, "perplexity": 9.0}] * 2}}),
    ))
    for method in ("full_softmax", "sohsm")
]  # fmt: skip


def _paths(value, path=()):
    """Yield the path, as keys and indices, to every value in a row."""
    yield path
    for name, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _paths(item, (*path, name))


PATHS = [(number, *path) for number, row in enumerate(ROWS) for path in _paths(row) if path]
REMOVED = object()


def changed_rows(path, value):
    """Return the rows with another value at one path, or without it."""
    rows = parent = json.loads(json.dumps(ROWS))
    *parents, last = path
    for name in parents:
        parent = parent[name]
    if value is REMOVED:
        del parent[last]
    else:
        parent[last] = value
    return rows


READERS = (
    ("table", "--clusters", "3", "--examples", "3", "--run"),
    *(("table", "--format", form, "--run") for form in ("latex", "html", "csv", "json")),
    ("table", "--against", "published", "--run"),
    ("publish", "--as", "fuzzed", "--replace"),
    ("compare", "whole.jsonl"),
    ("compare", "--frameworks", "torch,jax", "whole.jsonl"),
    ("compare", "--format", "json", "whole.jsonl"),
    ("report", "--run"),
    ("table", "--plot", "plot.svg", "--run"),
)


def write(path, rows):
    Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_unchanged_rows_are_valid():
    write("whole.jsonl", ROWS)
    assert {command[0]: outcome(*command, "whole.jsonl")[0] for command in READERS} == {
        "table": 0, "publish": 0, "compare": 0, "report": 0,
    }  # fmt: skip


@FEW
@given(st.sampled_from(PATHS), st.one_of(anything, st.just(REMOVED)), st.sampled_from(READERS[:-2]))
def test_a_results_file_with_any_value_in_any_place(path, value, command):
    write("whole.jsonl", ROWS)
    write("fuzzed.jsonl", changed_rows(path, value))
    code, errors = outcome(*command, "fuzzed.jsonl")
    assert code != 2 or "fuzzed.jsonl" in errors


@FEW
@given(st.binary(min_size=1, max_size=60), st.sampled_from(READERS))
def test_a_results_file_with_any_bytes(content, command):
    Path("fuzzed.jsonl").write_bytes(content)
    Path("whole.jsonl").write_bytes(content)
    assert outcome(*command, "fuzzed.jsonl")[0] in (2, 3)


RESUMED = ["run", "cpu", "-f", "numpy", "--precision", "float64", "-m", "huffman", "-v", "50", "--out", "resumed.jsonl"]


@FEW
@given(st.sampled_from(PATHS), st.one_of(anything, st.just(REMOVED)))
def test_a_run_appends_only_to_a_file_that_it_can_read(path, value):
    write("resumed.jsonl", changed_rows(path, value))
    before = Path("resumed.jsonl").read_bytes()
    code, _ = outcome(*RESUMED)
    assert code in (0, 2)
    assert Path("resumed.jsonl").read_bytes().startswith(before)


@FEW
@given(st.one_of(st.integers(0, 400), st.binary(min_size=1, max_size=40)))
def test_a_run_moves_an_incomplete_line_and_changes_nothing_else(end):
    write("resumed.jsonl", ROWS[:1])
    complete = Path("resumed.jsonl").read_bytes()
    added = complete[:end] if isinstance(end, int) else end
    *damaged, incomplete = added.split(b"\n")
    Path("resumed.jsonl").write_bytes(complete + added)
    Path("resumed.jsonl.partial").unlink(missing_ok=True)
    code, errors = outcome(*RESUMED)
    assert code == 0
    assert Path("resumed.jsonl").read_bytes().startswith(complete + b"".join(line + b"\n" for line in damaged))
    if incomplete:
        assert "ended in an incomplete row, which was moved to resumed.jsonl.partial" in " ".join(errors.split())
        assert Path("resumed.jsonl.partial").read_bytes() == incomplete
    else:
        assert not Path("resumed.jsonl.partial").exists()


# Suites: TOML of any kind, most of it close to what is allowed.
_TOML = st.one_of(
    st.sampled_from([
        "1", "-1", "0", "true", "nan", "inf", "1e400", "2.5", "10000000000000000000000", "1979-05-27", "''", "'timing'",
        "'agreement'", "'full_softmax'", "'numpy'", "'float64'", "[]", "[1, 2]", "['x']", "['numpy']", "['sohsm']",
        "['float64']", "[50]", "[0]", "[true]", "[[1]]", "{}", "{ rounds = 7 }", "{ rounds = 'x' }",
        "{ vectors = [[1.0]] }",
        "{ words = ['a', 'b'] }", "{ projection = 'none' }", "{ bins = 3 }", '"\\u0000"', '"/no/such"', "600",
    ]),
    st.text(alphabet="ab[]{}'\"=\n#0", max_size=6),
)  # fmt: skip
_KEYS = (
    "task",
    "frameworks",
    "methods",
    "vocab",
    "dim",
    "tokens",
    "precision",
    "dataset",
    "options",
    "settings",
    "seeds",
)


@FEW
@given(
    st.dictionaries(st.sampled_from((*_KEYS, "speed")), _TOML, max_size=3),
    st.dictionaries(st.sampled_from(("description", "deadline_seconds", "sweep", "x")), _TOML, max_size=1),
)
def test_a_suite_with_any_values(sweep, top):
    keys = {"task": "'timing'", "vocab": "[50]", "frameworks": "['numpy']", "precision": "['float64']"} | sweep
    lines = [f"{name} = {value}" for name, value in ({"description": "'mine'"} | top).items()]
    lines += ["[[sweep]]", *(f"{name} = {value}" for name, value in keys.items())]
    assert run_suite("\n".join(lines).encode(errors="surrogatepass")) in (0, 1, 2)


@FEW
@given(st.binary(max_size=60))
def test_a_suite_with_any_bytes(content):
    assert run_suite(content) == 2


def run_suite(content):
    path = Path("mine.toml")
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "suite_path", lambda name: path)
        Path("suite.jsonl").unlink(missing_ok=True)
        return outcome("run", "mine", "--out", "suite.jsonl")[0]


# Arguments: options, settings, sizes and names.
values = st.one_of(
    st.text(max_size=8),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(
        ["", "=", "1e400", "9" * 5000, "true", "None", "a,b", "/", "..", "\0", "\ud800", "\n", "-1", "1_0", "x" * 5000]
    ),
)
_NAMES = sorted({name for method in registry.methods() for name in registry.definition(method).options})
_SETTINGS = sorted({name for task in registry.tasks() for name in registry.task(task).settings})
FLAGS = ["-f", "-m", "-v", "-t", "--device", "--precision", "--dataset", "--seed", "-o", "-s", "--executor", "--cores"]


@FEW
@given(
    st.one_of(
        st.tuples(st.sampled_from(FLAGS), values),
        st.tuples(st.just("-o"), st.tuples(st.sampled_from(_NAMES), values).map("=".join)),
        st.tuples(st.just("-s"), st.tuples(st.sampled_from(_SETTINGS), values).map("=".join)),
    )
)
def test_any_arguments(pair):
    flag, value = pair
    Path("arguments.jsonl").unlink(missing_ok=True)
    argument = f"{flag}={value}" if flag[1] == "-" else flag + value
    code, errors = outcome("run", "cpu", "-f", "numpy", "-v", "50", argument, "--out", "arguments.jsonl")
    assert code in (0, 2), errors


@FEW
@given(
    st.lists(
        st.one_of(st.sampled_from(["table", "run", "data", "list", "get", "--run", "--out", "-v"]), values), max_size=3
    )
)
def test_any_command_lines(arguments):
    assert outcome("list", *arguments)[0] in (0, 2)
    assert outcome("table", *arguments)[0] in (0, 2)
    assert outcome("compare", *arguments)[0] in (0, 2, 3)


# Data: files with any bytes, and with records that are almost valid.
_LINES = st.lists(
    st.one_of(st.binary(max_size=20), st.text(max_size=20).map(lambda text: text.encode(errors="replace")))
)
_PAIR = {"text": "a b", "summary": "a"}
_UTTERANCE = {"audio": "a.wav", "text": "a", "language": "ba"}


def almost(record):
    """JSON lines of the record with one arbitrary value."""
    changed = st.tuples(st.sampled_from([*record, "summaries", "phones", "speaker"]), anything)
    return st.lists(changed.map(lambda pair: json.dumps(record | {pair[0]: pair[1]}).encode()), max_size=4)


def folder_of(**files):
    folder = Path("data")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


def is_read_or_refused(read):
    """Fail on any exception but `BadInput`, which a user would see as a traceback."""
    with contextlib.suppress(BadInput):
        read()


@FEW
@given(_LINES, _LINES)
def test_corpora_with_any_bytes(train, valid):
    folder = folder_of(train_txt=b"\n".join(train), valid_txt=b" ".join(valid))
    for name in (folder, folder / "train.txt"):
        is_read_or_refused(lambda name=name: corpora.load(str(name)))


@FEW
@given(st.one_of(_LINES, almost(_PAIR)), _LINES)
def test_any_pairs(train, titles):
    content = b"\n".join(train)
    folder = folder_of(train_jsonl=content)
    is_read_or_refused(lambda: summary_pairs.load(str(folder)))
    is_read_or_refused(lambda: summary_pairs.load(str(folder / "train.jsonl"), digits=True))
    folder = folder_of(train_source_txt=content, train_title_txt=b"\n".join(titles))
    is_read_or_refused(lambda: summary_pairs.load(str(folder)))


@FEW
@given(
    st.one_of(_LINES, almost(_UTTERANCE)),
    st.binary(max_size=80),
    st.sampled_from([b"", b"RIFF0000WAVE", b"fLaC", b"OggS"]),
)
def test_any_manifests_and_audio(lines, audio, header):
    folder = folder_of(train_jsonl=b"\n".join(lines), a_wav=header + audio)
    is_read_or_refused(lambda: speech_corpora.load(str(folder)))
    is_read_or_refused(lambda: speech_corpora.load(str(folder / "train.jsonl"), units="phones"))
    folder = folder_of(train_tsv=b"path\tsentence\n" + b"\n".join(lines), text_txt=b"\n".join(lines))
    is_read_or_refused(lambda: speech_corpora.load(str(folder)))
    (folder / "train.tsv").unlink()
    is_read_or_refused(lambda: speech_corpora.load(str(folder)))


@FEW
@given(_LINES)
def test_any_questions_and_word_pairs(lines):
    path = folder_of(words_txt=b"\n".join(lines)) / "words.txt"
    for score in (word_vectors.analogies, word_vectors.similarity):
        is_read_or_refused(lambda score=score: score(path, np.eye(3), {"a": 0, "b": 1, "c": 2}))


_SYNSET = b"00000001 03 n 01 entity 0 001 @ 00000002 n 0000 | what there is"
_LEMMA = b"entity n 1 1 @ 1 0 00000001"


@FEW
@given(
    st.lists(st.one_of(st.binary(max_size=20), st.just(_SYNSET), st.just(_LEMMA)), max_size=3),
    st.integers(0, 60),
    st.binary(max_size=3),
)
def test_any_wordnet_files(lines, position, inserted):
    changed = [line[:position] + inserted + line[position:] for line in lines]
    files = {
        f"{kind}_{pos}": b"\n".join(changed) for kind in ("data", "index") for pos in ("noun", "verb", "adj", "adv")
    }
    folder = folder_of(**files)
    is_read_or_refused(lambda: wordnet.read(folder))


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


_VALID = npy(np.ones((3, 2)))
_ARRAYS = st.sampled_from([
    *map(npy, (np.ones((3, 2)), np.array([[1, 2]]), np.array(["a"]), np.array([[np.nan]]), np.ones(2, complex))),
    *map(npy, (np.array([{}, 1], dtype=object), np.zeros((0, 2)), np.array([("a", 1)], dtype="U1,i4"))),
    *(_VALID.replace(b"(3, 2)", shape) for shape in (b"(3**9,)", b"(-3,-2)", b"(9999999999999, 2)", b"((((((")),
    b"PK\x03\x04",
])  # fmt: skip


@FEW
@given(st.one_of(_ARRAYS, st.binary(max_size=40)), st.integers(0, 200), st.binary(max_size=3))
def test_any_arrays_and_words(content, position, inserted):
    folder = folder_of(table_npy=content[:position] + inserted + content[position:], whole_npy=content)
    for path in map(str, sorted(folder.iterdir())):
        is_read_or_refused(lambda path=path: read_table("cluster", Table("a table").check("cluster", path)))
        is_read_or_refused(lambda path=path: read_words("words", Words("words").check("words", path)))


@pytest.fixture(scope="module")
def layer_bytes(working_folder):
    layer = layers.create("numpy", "huffman", counts=[5, 3, 1], dim=2)
    layer_file.save("layer.npz", layer, np.ones((2, 2)), [0, 1])
    return Path("layer.npz").read_bytes()


@settings(FEW, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 10**4), st.integers(0, 255)), max_size=6), st.integers(0, 20))
@example([(30, 128), (2421, 8)], 0)  # a name marked as UTF-8 that is not
def test_a_damaged_layer_is_loaded_or_refused(layer_bytes, changes, lost):
    content = bytearray(layer_bytes[: len(layer_bytes) - lost])
    for position, value in changes:
        content[position % len(content)] = value
    Path("damaged.npz").write_bytes(content)
    with contextlib.suppress(BadInput):
        assert layer_file.load("damaged.npz").layer("numpy").topk(np.ones((1, 2)), 3)[1].shape == (1, 3)
