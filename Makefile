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

test: system-packages $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml
	$(BIN)/pytest -m "not slow"

.PHONY: test-slow format docs-options system-packages clean
test-slow: system-packages $(VENV)/.dev
	$(BIN)/pytest -m slow

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs-options: $(VENV)/.dev
	$(BIN)/python docs/reference.py

# What the tests on a real Slurm need, where it may be installed: root on Debian or Ubuntu. Elsewhere
# those tests skip and say so. While policy-rc.d says 101, no package starts its daemon.
SYSTEM_PROGRAMS := sbatch slurmctld slurmd munged podman runc newuidmap
SYSTEM_PACKAGES := slurm-wlm slurmctld slurmd slurm-client munge podman runc uidmap catatonit
POLICY := /usr/sbin/policy-rc.d
APT := DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -qq -o DPkg::Lock::Timeout=300

system-packages:
	@[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0; \
	type $(SYSTEM_PROGRAMS) >/dev/null 2>&1 && dpkg -s catatonit >/dev/null 2>&1 && exit 0; \
	echo "installing $(SYSTEM_PACKAGES) ..."; \
	log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	if [ ! -e $(POLICY) ]; then \
	    trap 'rm -f "$$log" $(POLICY)' EXIT; \
	    printf '#!/bin/sh\nexit 101\n' >$(POLICY); chmod 755 $(POLICY); \
	fi; \
	{ $(APT) update && $(APT) install -y --no-install-recommends $(SYSTEM_PACKAGES); } \
	    >"$$log" 2>&1 </dev/null \
	    || { tail -n 20 "$$log"; echo "not installed: tests that need them are skipped"; }

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
