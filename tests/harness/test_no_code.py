"""No code runs from data: what would, were it unpickled, evaluated or filled into a template, is text or refused."""

import hashlib
import json
import pickle
from pathlib import Path

import numpy as np
import pytest

from vocabench.harness import cli, registry
from vocabench.harness.datasets.pairs import collection
from vocabench.harness.datasets.text import corpora
from vocabench.harness.import_root import IMPORT_ROOT
from vocabench.harness.run.cells import Cell
from vocabench.harness.run.store import Store
from vocabench.impls.errors import BadInput
from vocabench.impls.options import Table, read_table

MARK = "it-ran"


LOADERS = ("allow_pickle=True", "import pickle", "torch.load(", "yaml.load(", "shell=True", "os.system(", " eval(")


class Payload:
    """Unpickling it leaves a mark."""

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
def nothing_ran(in_empty_folder, monkeypatch):
    monkeypatch.setenv("VOCABENCH_CACHE", str(in_empty_folder / "cache"))
    yield
    assert not list(in_empty_folder.rglob(f"*{MARK}*"))


def test_the_payload_would_run(in_empty_folder):
    pickle.loads(pickle.dumps(Payload()))
    assert (in_empty_folder / MARK).exists()
    (in_empty_folder / MARK).unlink()


def arrays():
    objects = np.array([[Payload()]], dtype=object)
    np.save("object.npy", objects, allow_pickle=True)
    np.savez("object.npz", table=objects)
    Path("pickle.npy").write_bytes(pickle.dumps(Payload()))
    with open("named.npy", "wb") as file:  # a header that is evaluated by who trusts it
        np.lib.format.write_array(file, np.ones((1, 1)))
    content = Path("named.npy").read_bytes()
    descr = b"{'descr': __import__('pathlib').Path('it-ran').touch(), 'fortran_order': False, 'shape': (1, 1)}"
    Path("named.npy").write_bytes(content[:8] + len(descr).to_bytes(2, "little") + descr + content[-8:])
    return ["object.npy", "object.npz", "pickle.npy", "named.npy"]


def test_an_array_of_objects_is_refused():
    for name in arrays():
        with pytest.raises(BadInput, match="npy file"):
            Table("vectors").check("vectors", name)
        with pytest.raises(BadInput, match="npy file"):
            read_table("vectors", f"{name}@{hashlib.sha256(Path(name).read_bytes()).hexdigest()[:12]}")


@pytest.mark.parametrize("said", TEXTS)
def test_strange_text_in_a_row_is_text(said, capsys):
    cell = Cell("quick", "language_modelling", "torch", "sohsm", 10, 8, 8, dataset=said, settings={"split": said})
    row = {
        "key": cell.key,
        "cell": cell.to_json(),
        "status": "ok",
        "message": said,
        "measurements": [{"quantity": "perplexity", "value": 2.0, "detail": {"clusters": [[said]]}}],
        "agreement": {"verdict": "agree", "disagreements": [said]},
        "provenance": {"code": {"commit": said}, "started": said},
    }
    with Store(Path("rows.jsonl")) as store:
        store.append(row)
    for form in ("markdown", "latex", "csv", "json", "html"):
        clusters = ["--clusters", "3"] if form == "markdown" else []
        assert cli.main(["table", "--run", "rows.jsonl", "--format", form, *clusters]) == 0
    capsys.readouterr()
    assert cli.main(["report", "--run", "rows.jsonl", "--title", said]) == 0
    assert cli.main(["compare", "rows.jsonl", "rows.jsonl"]) == 0
    assert cli.main(["publish", "rows.jsonl", "--as", "said"]) == 0
    assert "self.__init__" in Path("report.html").read_text() or "self.__init__" not in said


@pytest.mark.parametrize("said", TEXTS)
def test_strange_text_in_a_suite_or_an_argument_is_refused(said, monkeypatch, capsys):
    path = Path("mine.toml")
    monkeypatch.setattr(registry, "suite_path", lambda name: path)
    for key in ("task", "methods", "frameworks", "precision", "dataset"):
        value = json.dumps(said) if key in ("task", "dataset") else json.dumps([said])
        sweep = {"task": '"language_modelling"', "frameworks": '["numpy"]', "methods": '["huffman"]', key: value}
        lines = ['description = "mine"', "[[sweep]]", *(f"{name} = {text}" for name, text in sweep.items())]
        path.write_text("\n".join(lines))
        assert cli.main(["run", "mine", "--out", "rows.jsonl"]) == 2
    monkeypatch.undo()
    for flag in ("-m", "-f", "-t", "--device", "--precision", "--dataset", "-o", "-s"):
        assert cli.main(["run", "quick", f"{flag}{'' if flag[1] != '-' else '='}{said}"]) == 2
    assert cli.main(["run", said]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_pickles_as_text_are_text():
    Path("train.txt").write_text(" ".join(TEXTS) * 9)
    assert corpora.load("./train.txt").words
    pairs = [json.dumps({"text": said, "summary": said}) for said in TEXTS]
    Path("pairs.jsonl").write_text("\n".join(pairs))
    assert len(collection.load("./pairs.jsonl").splits["train"])


def test_no_module_loads_pickles_or_evaluates_text():
    for path in [each for folder in ("harness", "impls") for each in (IMPORT_ROOT / folder).rglob("*.py")]:
        code = path.read_text(encoding="utf-8")
        found = [word for word in LOADERS if word in code]
        assert not found, path
