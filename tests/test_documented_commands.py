"""The commands in the documentation work: they parse, and run up to where they would measure for hours."""

import re
import shlex
import shutil

import pytest

from tests import ROOT, example_data
from tests.test_docs import TEXTS, TOYS, prose
from vocabench.harness import cli, registry
from vocabench.harness.run.settings import parse
from vocabench.harness.run.suites import Suite
from vocabench.impls.errors import BadInput


def _commands(text):
    """Return the command lines in code blocks and in sentences. Text after two spaces explains a command."""
    blocks = re.findall(r"^```(?:\w*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^ {4}(vocabench .*)$", text, re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    spans = re.findall(r"(?<!`)`(vocabench [^`]+)`(?!`)", prose(text))
    starts = (re.sub(r"^(.*?\S) {2,}\S.*", r"\1", re.sub(r"\\? +(?=-)", " ", line)) for line in [*lines, *indented])
    return [line for line in [*starts, *spans] if line.startswith("vocabench ")]


COMMANDS = [(path, line) for path in TEXTS for line in dict.fromkeys(_commands(path.read_text()))]


def test_commands_are_found():
    assert len(COMMANDS) > 50
    assert len({path for path, _ in COMMANDS}) > 10


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_commands_parse(path, line, monkeypatch):
    """Suites, methods, tasks, options, settings and datasets in commands exist. Nothing is run."""
    arguments = shlex.split(re.sub(r"\bN\b", "1", line), comments=True)[1:]
    if len(arguments) == 1 and arguments[0] in ("compare", "publish", "export", "data", "list", "score", "eval"):
        return  # a command's name in a sentence
    parsed = cli._parser().parse_args(arguments)
    for kind, names in (
        ("framework", registry.frameworks()),
        ("method", [*registry.methods(), *registry.extra_methods()]),
        ("task", registry.tasks()),
    ):
        assert set(getattr(parsed, kind, None) or ()) <= {*names, *TOYS}
    if arguments[0] == "run":
        _check_run(parsed, monkeypatch)
        # Any other name is a path, which the page must explain.
        known = parsed.dataset is None or parsed.dataset.isupper() or parsed.dataset in registry.datasets()
        assert known or f"`{parsed.dataset}`" in path.read_text()
    if arguments[0] == "data" and parsed.name and not parsed.name.isupper():
        assert parsed.name in registry.datasets()
    for run in getattr(parsed, "run", None) or ():
        assert run.isupper() or (ROOT / run).is_file()


# Commands that read stored rows or outputs, or write a few files. To measure what the others measure would take hours.
READING = ("table", "report", "compare", "score", "list", "completion", "new", "info")
RUN_AS_THEY_ARE = sorted({line for _, line in COMMANDS if line.split()[1] in (*READING, "data")} - {"vocabench data"})


@pytest.fixture
def with_outputs(in_empty_folder):
    """Set up an empty folder with rows, and with outputs of systems, under the names of the examples."""
    (in_empty_folder / "results" / "local").mkdir(parents=True)
    for path in (ROOT / "results").glob("*.jsonl"):
        (in_empty_folder / "results" / path.name).symlink_to(path)
    for name in ("results/local/newest.jsonl", "before.jsonl", "after.jsonl"):
        shutil.copy(ROOT / "results" / "quick-epyc.jsonl", name)
    example_data.write_outputs(in_empty_folder)


@pytest.mark.usefixtures("with_outputs", "empty_cache")
@pytest.mark.parametrize("line", [line for line in RUN_AS_THEY_ARE if not re.search("data (get|verify)", line)])
def test_commands_that_measure_nothing_run(line, capsys):
    arguments = shlex.split(line, comments=True)[1:]
    if arguments in (["compare"], ["score"], ["list"]):
        return  # a command's name in a sentence
    names = {"A": "before.jsonl", "B": "after.jsonl", "N": "1", "NAME": "my_method"}
    names["FILE"] = "plot.svg" if "--plot" in arguments else "ours.jsonl"
    code = cli.main([names.get(argument, argument) for argument in arguments])
    printed = capsys.readouterr()
    assert code == ("--fail-on-unclear" in arguments), printed.err  # one run on each side shows little
    assert printed.out


# Commands that measure, up to the list of their cells; in sentences, a bare `vocabench run` is a command's name.
PLANNED = sorted({line for _, line in COMMANDS if line.startswith("vocabench run ")})
NOT_HERE = re.compile(r"not installed|vocabench data get|needs --dataset")
REPLACED = {"SUITE": "quick", "PATH.toml": "my-suite.toml", "FILE": "text.txt", "N": "1", "cuda": "cpu"}
REPLACED |= {"tree=FILE": "tree=tree.json", "analogies=FILE": "analogies=questions.txt"}
REPLACED |= dict.fromkeys(TOYS, "full_softmax")
# A cluster and a plugin have tests of their own.
LEFT_OUT = ("--executor", "--address", "--cores", "--plugin")
OWN_FILES = {"trained_layer": "layer.npz", "documents": "documents.jsonl"}


@pytest.mark.many_cells
@pytest.mark.usefixtures("with_outputs")
@pytest.mark.parametrize("line", PLANNED)
def test_commands_that_measure_list_their_cells(line, in_empty_folder, capsys):
    example_data.write(in_empty_folder)
    arguments = shlex.split(line, comments=True)[1:]
    if "speech" in arguments:
        example_data.write_recordings(in_empty_folder)
    replaced = REPLACED | {"FILE": OWN_FILES.get(arguments[1], "text.txt")}
    if "--dataset" in arguments:  # whose vocabulary is small
        replaced |= {size: "6" for size in arguments if size.isdecimal() and int(size) > 10000}
    arguments = [replaced.get(argument, argument) for argument in arguments]
    for option in LEFT_OUT:
        if option in arguments:
            del arguments[arguments.index(option) : arguments.index(option) + 2]
    code = cli.main([*arguments, "--dry-run"])
    printed = capsys.readouterr()
    if code:
        assert NOT_HERE.search(printed.err), printed.err
    else:
        assert re.search(r"^\d+ of \d+ cells to measure", printed.out, re.MULTILINE), printed.out


def _check_run(parsed, monkeypatch):
    seen = []
    monkeypatch.setattr(registry, "check_framework", lambda name: name)  # need not be installed
    monkeypatch.setattr(
        "vocabench.harness.commands.run.run", lambda suite, selection, **_: seen.append((suite, selection)) or 0
    )
    parsed.command(parsed)
    [(name, selection)] = seen
    if name.isupper() or name.endswith(".toml"):  # any, or the reader's own
        return
    suite = Suite.load(name)
    if not set(selection.methods or ()) & set(TOYS):
        try:
            suite.plan(selection)
        except BadInput as error:  # the files of an example do not exist
            if not re.search(r"no such file|needs --dataset", str(error)):
                raise
    for method in selection.methods or registry.methods():
        options = {} if method in (*TOYS, *registry.extra_methods()) else registry.definition(method).options
        for option in options.keys() & selection.options:
            _check_value(option, options[option], selection.options[option])
    for task in selection.tasks or registry.tasks():
        settings = registry.task(task).settings
        for setting in settings.keys() & selection.settings:
            _check_value(setting, settings[setting], selection.settings[setting])


def _check_value(name, setting, text):
    if not text.isupper():
        setting.check(name, parse(setting, text))


@pytest.mark.parametrize(
    "line",
    [
        "vocabench tabel",
        "vocabench run quik",
        "vocabench run quick -m sohms",
        "vocabench run quick -o projecton=none",
        "vocabench run quick -o projection=some",
        "vocabench run quick -t language_modelling --dataset pydocs",
        "vocabench table --run results/quik.jsonl",
    ],
)
def test_a_wrong_command_would_be_seen(line, monkeypatch):
    with pytest.raises((AssertionError, BadInput)):
        test_commands_parse(ROOT / "README.md", line, monkeypatch)
