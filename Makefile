# make run     the first comparison: set up, train both arms, print the verdict
# make test    set up and run the tests
# make check   lint and types
# make docs    write the reference again and build the site, into site/
# make sglang  set up the real SGLang on the CPU (.venv-sglang, about 3 GB); its tests then run too

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SGLANG_INSTALLED := .venv-sglang/.installed

.PHONY: run test check docs sglang

run: $(INSTALLED)
	$(BIN)/parity run --baseline --experiment native

test: $(INSTALLED)
	$(BIN)/pytest -n 2 --dist loadfile -m 'not sglang'
	$(BIN)/pytest -m sglang # alone, since it sizes its memory by what is free while it starts

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python tools/docs/reference.py
	$(BIN)/mkdocs build --strict

sglang: $(SGLANG_INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into $(VENV), some minutes and about 2 GB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(SGLANG_INSTALLED): $(wildcard tools/sglang_cpu/*)
	$(PYTHON) tools/sglang_cpu/install.py .venv-sglang
	touch $@
