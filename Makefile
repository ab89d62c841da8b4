# make run     the first comparison: set up, train both arms, print the verdict
# make quick   the tests that take no more than a second or two
# make test    set up and run the tests, without real engines and Ray
# make test-engines  the tests of the real engines that are set up here, and of clusters of Ray
# make bits    run the tests that hold arithmetic to the bit, under each kind of kernel that this processor has
# make check   lint, types, the order of imports, dead code, insecure calls
# make audit   known vulnerabilities of what is installed; asks an index of packages that knows them
# make messages  bring the catalogue of messages up to date, after one was added or translated
# make package  build the wheel and the source archive, into dist/, and check them
# make crashes  let a run die at every file operation (the tests draw some)
# make fuzz    give the readers many more bytes than the tests do
# make docs    write the reference again and build the site, into site/
# make sglang  set up the real SGLang on the CPU (.venv-sglang, about 3 GB); its tests then run too
# make vllm    set up the real vLLM on the CPU (.venv-vllm, about 2 GB); its tests then run too

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SGLANG_INSTALLED := .venv-sglang/.installed
VLLM_INSTALLED := .venv-vllm/.installed
# a file's tests stay together, since they share what is built for them; tests/conftest.py puts files that take long first
PYTEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: run quick test test-engines bits check audit messages package docs sglang vllm crashes fuzz

run: $(INSTALLED)
	$(BIN)/parity run --baseline --experiment native

test: $(INSTALLED)
	$(PYTEST) -m 'not sglang and not vllm and not ray'

quick: $(INSTALLED)
	$(PYTEST) -m 'not sglang and not vllm and not ray and not slow'

# one after the other, since SGLang sizes its memory by what is free while it starts
test-engines: $(INSTALLED)
	$(BIN)/pytest -m 'sglang or vllm or ray'

# Torch, MKL and oneDNN each choose their kernels by the processor; a limit here makes them choose as on an older one.
bits: $(INSTALLED)
	set -e; for kernels in 'default SSE4_2 SSE41' 'avx2 AVX2 AVX2' 'avx512 AVX512 AVX512_CORE'; do \
		set -- $$kernels; \
		if [ $$1 != default ] && ! grep -q "$$1" /proc/cpuinfo; then echo "not run: $$1, which this processor lacks"; continue; fi; \
		for threads in 1 2; do \
			echo "kernels $$1, threads $$threads"; \
			ATEN_CPU_CAPABILITY=$$1 MKL_ENABLE_INSTRUCTIONS=$$2 ONEDNN_MAX_CPU_ISA=$$3 OMP_NUM_THREADS=$$threads \
				$(PYTEST) -q -m bits; \
		done; \
	done

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/bandit -q -c pyproject.toml -r parity rollout_patch

audit: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit

messages: $(INSTALLED)
	$(BIN)/python tools/messages.py

package: $(INSTALLED)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

crashes: $(INSTALLED)
	PARITY_CRASHES=all $(BIN)/pytest -q tests/runner/test_crashes.py

fuzz: $(INSTALLED)
	PARITY_FUZZ=3000 $(BIN)/pytest -q --timeout=0 tests/sources/test_fuzz.py

docs: $(INSTALLED)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	$(BIN)/python tools/reference.py
	$(BIN)/mkdocs build --strict

sglang: $(SGLANG_INSTALLED)

vllm: $(VLLM_INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "installing into $(VENV), some minutes and about 2 GB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

$(SGLANG_INSTALLED) $(VLLM_INSTALLED): .venv-%/.installed: tools/engines_cpu/install.py tools/engines_cpu/%.txt
	$(PYTHON) tools/engines_cpu/install.py $* .venv-$*
	touch $@
