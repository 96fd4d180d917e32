# `make bench` and `make test` set up .venv by themselves, from the exact versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DOCS_INSTALLED := .venv/.docs-installed

.PHONY: bench report check test lint format docs asv clean

bench: $(INSTALLED)
	$(BIN)/vocabench run quick -t agreement -t timing -t language_modelling

report: $(INSTALLED)
	$(BIN)/vocabench report

check: $(INSTALLED)
	$(BIN)/vocabench check

test: lint
	OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --level error

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

asv: $(INSTALLED)
	$(BIN)/asv machine --yes
	$(BIN)/asv run HEAD^!

$(INSTALLED): constraints.txt pyproject.toml
# An installation that was cut short leaves packages with half of their files, which pip would take for whole.
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[all,dev]"
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[docs]"
	touch $@

clean:
	rm -rf .venv build *.egg-info
