# Each target sets up what it needs: `make test` in a fresh checkout is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test lint docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP)  ## create .venv with the pinned dependencies and this package

# The stamp makes the install run again only when one of these two files changes.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "uncork needs Python 3.11 or later, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Try: make install PYTHON=python3.12" >&2; \
	  exit 1; }
	@echo "Installing into $(VENV): a minute or two, once."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev,docs]'
	@touch $@

demo: $(STAMP)  ## theory checks, a small synthetic grid, a report: two to three minutes
	$(BIN)/python -m uncork demo

# One thread per worker: two workers that each start a thread per core slow each other down.
# The GPU kernels come first, in Triton's interpreter, which must be chosen before Triton is imported: every test
# that runs over backends runs over them too. PYTEST_ARGS asks for less than the suite, and gets that alone.
test: $(STAMP)  ## run the test suite
ifeq ($(strip $(PYTEST_ARGS)),)
	@if $(BIN)/python -c 'import triton' 2>/dev/null; then \
	  TRITON_INTERPRET=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 -q -k triton tests/ops tests/heads tests/functions tests/lm/test_update_triton.py tests/lm/test_operands_triton.py tests/lm/test_stack.py; \
	else echo "Triton is not installed: the GPU kernels are not tested."; fi
endif
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

lint: $(STAMP)  ## ruff (lint and format) and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The report is made from the committed result files, and left out of the repository: it is large.
docs: $(STAMP)  ## build the documentation into site/
	$(BIN)/python -m uncork report results/synthetic-full.jsonl results/lm-*.jsonl results/theory.json -o docs/report.html --figures site_figures
	@rm -rf site_figures
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean:  ## remove the environment and everything built
	rm -rf $(VENV) site site_figures docs/report.html build dist demo .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks docs -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
