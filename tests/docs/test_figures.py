"""Tables and figures of the documentation are made from published rows, and are current."""

import re

import pytest

from docs._figures import blocks, pages
from docs._figures.published import Missing, NotFound, Published
from docs._figures.show import show
from docs._figures.tables import table
from tests import ROOT, published_files
from vocabench.harness import cli, registry
from vocabench.harness.quantities import QUANTITIES
from vocabench.harness.report import units

SOHSM = {"rows": "cpu-epyc", "task": "timing", "vocab": 44000, "framework": "torch", "method": "sohsm"}
TABLE = """\
<!-- table
rows = "cpu-epyc"
where = { task = "timing", framework = "torch", vocab = 44000 }
head = ["layer"]
lines = [{ text = ["`sohsm`"], method = "sohsm" }]
columns = [{ title = "speed-up", cell = "{layer_seconds ratio}" }]
-->
"""


# Figures in sentences that must be in some published row: memory, and perplexities with two decimals.
MEMORY = re.compile(r"\d[\d,.]* [MG]iB")
PERPLEXITY = re.compile(r"[Pp]erplexit(?:y|ies)(?: of| is| was)? (\d+\.\d\d)\b")
PROSE = (
    "README.md",
    "docs/baselines.md",
    "docs/closing-the-gap.md",
    "docs/gpu.md",
    "docs/kernels.md",
    "docs/layers.md",
    "docs/speed.md",
    "docs/trained-layer.md",
)
NOT_MEASURED = {"64 MiB"}  # the size of a block of logits


@pytest.fixture(scope="module")
def published():
    return Published(ROOT / "results")


@pytest.fixture(scope="module")
def records(published):
    names = (path.relative_to(ROOT / "results").with_suffix("").as_posix() for path in published_files())
    return [record for name in names for record in published.records(name)]


def test_every_made_part_is_current():
    """`make docs-tables` writes what this test finds wrong."""
    stale = [path.relative_to(ROOT).as_posix() for path, text in pages.made().items() if path.read_text() != text]
    assert stale == []


def test_pages_hold_figures_made_from_rows():
    made = {path.relative_to(ROOT).as_posix() for path in pages.made()}
    assert {"README.md", "docs/layers.md", "docs/speed.md", "docs/trained-layer.md", "docs/command.md"} <= made


def test_a_table_is_made_anew(published):
    page = f"Before.\n\n{TABLE}| typed |\n<!-- end -->\n\nAfter.\n"
    made = blocks.updated(page, published, "page.md")
    ratio = show("ratio", {**SOHSM, "quantity": "layer_seconds"}, published)
    lines = f"| layer | speed-up |\n|---|---:|\n| `sohsm` | {ratio} |\n"
    assert made == f"Before.\n\n{TABLE}{lines}<!-- end -->\n\nAfter.\n"
    assert blocks.updated(made, published, "page.md") == made


def test_a_figure_in_a_sentence_is_made_anew(published):
    names = "<!-- figures\n[own]\n" + "".join(f"{name} = {value!r}\n" for name, value in SOHSM.items()) + "-->\n"
    page = f"{names}It is <!-- = own layer_seconds ratio -->1x<!-- end --> as fast.\n"
    made = blocks.updated(page, published, "page.md")
    assert re.search(r"-->\d[\d.]+x \[[\d.]+, [\d.]+\]<!-- end --> as fast", made)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"vocab": 44001}, Missing, "0 figures"),
        ({"vocab": None}, NotFound, "figures with .*: allowed: one"),
        ({"vocabulary": 44000}, NotFound, "unknown field 'vocabulary'"),
    ],
)
def test_a_selection_must_fit_one_figure(published, change, error, message):
    with pytest.raises(error, match=message):
        show("ratio", {**SOHSM, "quantity": "layer_seconds", **change}, published)


def test_wrong_blocks_name_the_page(published):
    for text, message in (
        (TABLE.replace("head", "heads") + "<!-- end -->\n", "page.md: unknown key 'heads'"),
        (TABLE.replace(" ratio}", " rato}") + "<!-- end -->\n", "page.md: unknown format 'rato'"),
        (TABLE, "page.md: 0 ends of 1 blocks"),
        ("<!-- = own layer_seconds ratio -->1x<!-- end -->", "page.md: unknown figures 'own'"),
    ):
        with pytest.raises(blocks.WrongBlock, match=message):
            blocks.updated(text, published, "page.md")


def test_a_figure_may_be_missing_only_where_the_table_says_so(published):
    content = {
        "rows": "cpu-epyc",
        "where": {"task": "timing", "framework": "torch", "method": "sohsm"},
        "head": ["words"],
        "each": {"vocab": [44000, 45000]},
        "columns": [{"title": "speed-up", "cell": "{layer_seconds ratio}"}],
    }
    with pytest.raises(Missing):
        table(content, published)
    assert table({**content, "blanks": True}, published).endswith("| 45,000 |  |")


def test_the_page_of_the_command_line_has_every_option():
    page = (ROOT / "docs" / "command.md").read_text()
    for command in cli.COMMANDS:
        assert f"## vocabench {command.name}\n" in page
    for method in registry.methods():
        for option in registry.definition(method).options:
            assert f"| `{option}` |" in page
    for task in registry.tasks():
        for setting in registry.task(task).settings:
            assert f"| `{setting}` |" in page


@pytest.mark.parametrize(
    ("block", "line"),
    [
        ('settings\ntasks = ["timing"]\nnames = ["rounds"]', "| `rounds` | 4 | interleaved rounds of each process"),
        ('settings\ntasks = ["agreement", "timing"]\nnames = ["rounds"]', "| `rounds` |  | 4 | interleaved rounds of"),
        ('quantities\nnames = ["known_perplexity"]', "| `known_perplexity` |  | lower | perplexity over"),
        ('tolerances\nshow = "factors"', "| `loss` | 8 | a mean of log-probabilities"),
        (
            'files\nfiles = ["archive/gpu-h100"]\n'
            'columns = ["commit", "framework", "definition of times", "processes"]',
            "| [archive/gpu-h100](../results/archive/gpu-h100.jsonl) | 2a87788 | PyTorch 2.11.0 | none | 1 |",
        ),
    ],
)
def test_reference_tables_are_made(published, block, line):
    made = blocks.updated(f"<!-- {block}\n-->\n<!-- end -->\n", published, "page.md")
    assert line in made
    assert blocks.updated(made, published, "page.md") == made


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ('settings\ntasks = ["timing"]\nnames = ["round"]', "unknown setting 'round' of timing"),
        ('quantities\nnames = ["topk"]', "unknown quantity 'topk': allowed: layer_seconds, "),
        ('tolerances\nshow = "factor"', "unknown tolerances 'factor': allowed: units, factors, flips"),
        (
            'files\nfiles = ["archive/gpu-h100"]\ncolumns = ["code"]',
            "unknown column 'code' of files: allowed: machine, commit",
        ),
    ],
)
def test_wrong_reference_tables_say_what_is_allowed(published, block, message):
    with pytest.raises(blocks.WrongBlock, match=f"page.md: {message}"):
        blocks.updated(f"<!-- {block}\n-->\n<!-- end -->\n", published, "page.md")


def test_the_reference_page_has_every_quantity_and_setting_of_timing():
    page = (ROOT / "docs" / "quantities.md").read_text()
    missing = [name for name in QUANTITIES if f"| `{name}` |" not in page]
    missing += [name for name in registry.task("timing").settings if f"`{name}`" not in page]
    assert not missing, f"add these names to the comments of docs/quantities.md, and run make docs-tables: {missing}"


def test_losses_of_epochs_are_shown(published):
    where = {"rows": "eltec-h200", "method": "full_softmax", "quantity": "perplexity"}
    assert re.fullmatch(r"4\.66, (\d\.\d\d, ){3}\d\.\d\d", show("losses", where, published))


def test_the_best_epoch_is_that_of_the_lowest_perplexity(published):
    where = {"rows": "eltec-h200", "method": "full_softmax", "quantity": "perplexity"}
    curve = [float(point) for point in show("curve", where, published).split(", ")]
    assert float(show("best", where, published)) == min(curve) < curve[-1]
    assert int(show("best_epoch", where, published)) == curve.index(min(curve)) + 1 < len(curve)


def test_a_range_has_the_lowest_and_the_highest_ratio(published):
    where = {**SOHSM, "quantity": "layer_seconds", "framework": None}
    ratios = [show("ratio", {**where, "framework": name}, published) for name in ("torch", "tensorflow", "jax")]
    ratios.sort(key=lambda ratio: float(ratio.split("x")[0]))
    assert show("range", where, published) == f"{ratios[0]} to {ratios[-1]}"
    with pytest.raises(Missing):
        show("range", {**where, "vocab": 44001}, published)


@pytest.mark.parametrize("page", PROSE)
def test_figures_in_sentences_are_of_published_rows(page, records):
    text = re.sub(r"<!-- .*?-->", "", (ROOT / page).read_text(), flags=re.DOTALL)
    measured = [record["value"] for record in records if record["unit"] == "B" and record["value"]]
    sizes = {form(value) for value in measured for form in (units.size, lambda value: f"{value / 2**20:,.0f} MiB")}
    assert set(MEMORY.findall(text)) - NOT_MEASURED <= sizes
    perplexities = [record["value"] for record in records if record["quantity"] == "perplexity" and record["value"]]
    assert set(PERPLEXITY.findall(text)) <= {f"{value:.2f}" for value in perplexities}


def test_a_typed_figure_that_no_row_has_would_be_seen(tmp_path, monkeypatch, records):
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    for wrong in ("It needs 987.5 MiB.", "It has a perplexity of 67.00."):
        (tmp_path / "page.md").write_text(wrong)
        with pytest.raises(AssertionError):
            test_figures_in_sentences_are_of_published_rows("page.md", records)
