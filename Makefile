# `make bench` and `make test` set up .venv by themselves, with the exact versions in constraints.txt.
PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
DOCS_INSTALLED := .venv/.docs-installed
TRITON_BIN := .venv-triton/bin
TRITON_INSTALLED := .venv-triton/.installed
PIP_OPTIONS := --quiet --disable-pip-version-check
CPP_SOURCES := $(wildcard impls/cpp/*.h impls/cpp/*.cpp)
ONE_THREAD := OMP_NUM_THREADS=1 TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1
TRITON_TESTS := $(addprefix tests/impls/on_torch/,test_kernels.py test_tree_kernels.py test_kernel_sizes.py)

.PHONY: bench report check test pytest test-triton lint style types format docs docs-tables asv wheel clean

bench: $(INSTALLED)
	$(BIN)/vocabench run quick

report: $(INSTALLED)
	$(BIN)/vocabench report

check: $(INSTALLED)
	$(BIN)/vocabench check

# The type checker has one thread, and runs beside the tests.
test: style
	$(MAKE) --jobs=2 types pytest

pytest: $(INSTALLED)
	$(ONE_THREAD) $(BIN)/python -m pytest -n logical --maxprocesses 4 --dist worksteal $(ARGS)

# The Triton kernels in Triton's interpreter, which needs other versions than the frameworks in .venv.
test-triton: $(TRITON_INSTALLED)
	$(ONE_THREAD) TRITON_INTERPRET=1 $(TRITON_BIN)/python -m pytest -n logical --maxprocesses 4 $(ARGS) $(TRITON_TESTS)

lint: style types

style: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP_SOURCES)

types: $(INSTALLED)
	$(BIN)/pyright --level error

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_SOURCES)

docs: $(DOCS_INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Write the tables and figures of the documentation that are made from rows, and the page of the command line.
docs-tables: $(INSTALLED)
	$(BIN)/python -m docs._figures

# asv splits its graphs by these values, so that they are the same after an update of the kernel.
asv: $(INSTALLED)
	$(BIN)/asv machine --yes --os "$$(uname -s)" --ram "$$(awk '/MemTotal/ { printf "%.0f GiB", $$2 / 2^20 }' /proc/meminfo)"
	$(BIN)/asv run HEAD^!

# The wheel with compiled C++ kernels, in `dist/`.
wheel: $(INSTALLED)
	$(BIN)/python -m distribution $(ARGS)

# `--clear` removes what an interrupted installation left: pip would take half-installed packages for complete ones.
$(INSTALLED): constraints.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt setuptools wheel
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt --no-build-isolation -e ".[all,dev]"
	touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	$(BIN)/python -m pip install $(PIP_OPTIONS) -c constraints.txt --no-build-isolation -e ".[docs]"
	touch $@

$(TRITON_INSTALLED): constraints-triton.txt constraints.txt pyproject.toml
	$(PYTHON) -m venv --clear .venv-triton
	grep -v '^numpy==' constraints.txt > .venv-triton/constraints.txt
	$(TRITON_BIN)/python -m pip install $(PIP_OPTIONS) -c .venv-triton/constraints.txt -c constraints-triton.txt \
		setuptools wheel
	$(TRITON_BIN)/python -m pip install $(PIP_OPTIONS) -c .venv-triton/constraints.txt -c constraints-triton.txt \
		--no-build-isolation -e ".[torch]" triton hypothesis pytest pytest-xdist
	touch $@

clean:
	rm -rf .venv .venv-triton build *.egg-info
