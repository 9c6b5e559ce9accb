# The README's two commands are the first two targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

.PHONY: demo test
demo: $(VENV)/.examples
	$(BIN)/python -m scalable run examples/climate-ensemble/scalable.yaml \
	    --target local --workflow examples/climate-ensemble/workflow.py

test: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/pytest -m "not slow"

.PHONY: test-slow format docs-options clean
test-slow: $(VENV)/.dev
	$(BIN)/pytest -m slow

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs-options: $(VENV)/.dev
	$(BIN)/python docs/reference.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

# A virtual environment that a broken or other Python left behind is made anew.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "scalable needs Python >= 3.11; run: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) \
	    || { echo "python3 -m venv failed; on Debian: apt-get install python3-venv"; exit 1; }
	@$(BIN)/pip install --quiet --disable-pip-version-check "pip>=25.1"
	@touch $@

$(VENV)/.examples: $(VENV)/.created pyproject.toml
	@echo "installing scalable and the example's model into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[examples]'
	@touch $@

$(VENV)/.dev: $(VENV)/.examples pyproject.toml
	@echo "installing the development tools into $(VENV) ..."
	@$(BIN)/pip install --quiet --disable-pip-version-check --group dev
	@touch $@
