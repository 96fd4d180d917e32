"""No code runs from data: text that would run if it were unpickled, evaluated or formatted is kept or refused."""

import hashlib
import itertools
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from vocabench.harness import cli, registry
from vocabench.harness.datasets.pairs import summary_pairs
from vocabench.harness.datasets.text import corpora
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.rows import Measurement, Provenance, Row
from vocabench.harness.run.store import Store
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Table, read_table

MARK = "it-ran"

# Calls that load pickles, evaluate text or run a shell.
LOADERS = ("allow_pickle=True", "import pickle", "torch.load(", "yaml.load(", "shell=True", "os.system(", " eval(")


class Payload:
    """Creates a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path(MARK),)


TEXTS = [
    f"__import__('pathlib').Path('{MARK}').touch()",
    f"$(touch {MARK})",
    f"`touch {MARK}`; touch {MARK} #",
    f"{{{{ self.__init__.__globals__.__builtins__.open('{MARK}', 'w') }}}}",
    f"{{0.__class__}}%s!r{{x!r:>{{width}}}}touch {MARK}",
    pickle.dumps(Payload(), protocol=0).decode("ascii"),
]


@pytest.fixture(autouse=True)
def no_payload_ran(in_empty_folder, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(in_empty_folder / "cache"))
    yield
    assert not list(in_empty_folder.rglob(f"*{MARK}*"))


def test_unpickling_runs_the_payload(in_empty_folder):
    pickle.loads(pickle.dumps(Payload()))
    assert (in_empty_folder / MARK).exists()
    (in_empty_folder / MARK).unlink()


def write_arrays():
    """Write files with objects, a pickle, and a header that is code, and return their names."""
    objects = np.array([[Payload()]], dtype=object)
    np.save("object.npy", objects, allow_pickle=True)
    np.savez("object.npz", table=objects)
    Path("pickle.npy").write_bytes(pickle.dumps(Payload()))
    with open("named.npy", "wb") as file:
        np.lib.format.write_array(file, np.ones((1, 1)))
    content = Path("named.npy").read_bytes()
    descr = b"{'descr': __import__('pathlib').Path('it-ran').touch(), 'fortran_order': False, 'shape': (1, 1)}"
    Path("named.npy").write_bytes(content[:8] + len(descr).to_bytes(2, "little") + descr + content[-8:])
    return ["object.npy", "object.npz", "pickle.npy", "named.npy"]


def test_arrays_of_objects_are_refused():
    for name in write_arrays():
        with pytest.raises(BadInput, match="npy file"):
            Table("vectors").check("vectors", name)
        with pytest.raises(BadInput, match="npy file"):
            read_table("vectors", f"{name}@{hashlib.sha256(Path(name).read_bytes()).hexdigest()[:12]}")


@pytest.mark.parametrize("text", TEXTS)
def test_code_in_a_row_stays_text(text, capsys):
    cell = Cell("quick", "language_modelling", "torch", "sohsm", 10, 8, 8, dataset=text, settings={"split": text})
    row = Row(
        cell.key,
        cell,
        "ok",
        message=text,
        measurements=[Measurement("perplexity", 2.0, detail={"clusters": [[text]]})],
        agreement={"verdict": "agree", "disagreements": [text]},
        provenance=Provenance(code={"commit": text, "dirty": False}, started=text),
    )
    with Store(Path("rows.jsonl")) as store:
        store.append(row)
    for text_format in ("markdown", "latex", "csv", "json", "html"):
        clusters = ["--clusters", "3"] if text_format == "markdown" else []
        assert cli.main(["table", "--run", "rows.jsonl", "--format", text_format, *clusters]) == 0
    capsys.readouterr()
    assert cli.main(["report", "--run", "rows.jsonl", "--title", text]) == 0
    assert cli.main(["compare", "rows.jsonl", "rows.jsonl"]) == 0
    assert cli.main(["publish", "rows.jsonl", "--as", "text"]) == 0
    assert "self.__init__" in Path("report.html").read_text() or "self.__init__" not in text


@pytest.mark.parametrize("text", TEXTS)
def test_code_in_a_suite_or_an_argument_is_refused(text, monkeypatch, capsys):
    path = Path("mine.toml")
    monkeypatch.setattr(registry, "suite_path", lambda name: path)
    for key in ("task", "methods", "frameworks", "precision", "dataset"):
        value = json.dumps(text) if key in ("task", "dataset") else json.dumps([text])
        sweep = {"task": '"language_modelling"', "frameworks": '["numpy"]', "methods": '["huffman"]', key: value}
        lines = ['description = "mine"', "[[sweep]]", *(f"{name} = {toml}" for name, toml in sweep.items())]
        path.write_text("\n".join(lines))
        assert cli.main(["run", "mine", "--out", "rows.jsonl"]) == 2
    monkeypatch.undo()
    for flag in ("-m", "-f", "-t", "--device", "--precision", "--dataset", "-o", "-s"):
        assert cli.main(["run", "quick", f"{flag}{'' if flag[1] != '-' else '='}{text}"]) == 2
    assert cli.main(["run", text]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_pickles_in_datasets_stay_text():
    Path("train.txt").write_text(" ".join(TEXTS) * 9)
    assert corpora.load("./train.txt").words
    pairs = [json.dumps({"text": text, "summary": text}) for text in TEXTS]
    Path("pairs.jsonl").write_text("\n".join(pairs))
    assert len(summary_pairs.load("./pairs.jsonl").splits["train"])


def test_no_module_loads_pickles_or_evaluates_text():
    for path in itertools.chain.from_iterable((IMPORT_ROOT / folder).rglob("*.py") for folder in ("harness", "impls")):
        code = path.read_text(encoding="utf-8")
        assert not [loader for loader in LOADERS if loader in code], path
