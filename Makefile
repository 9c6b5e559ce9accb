# The README's two commands are the first two targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
# Bytecode is kept: without it each of the many processes of the tests compiles every module anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test
demo: $(VENV)/.examples
	$(BIN)/python -m scalable run examples/climate-ensemble/scalable.yaml \
	    --target local --workflow examples/climate-ensemble/workflow.py

# Tests run side by side, also on few cores: most of them wait for processes, clocks and queues.
PYTEST := $(BIN)/pytest -o cache_dir=.cache/pytest
SIDE_BY_SIDE := -n auto --dist loadfile --no-loadscope-reorder
# Some tests of processes are sensitive to a loaded machine: what failed beside others is named, and
# has to pass alone.
ALONE := { echo "again, one after the other: the tests that failed beside others"; \
	$(PYTEST) -m "not slow" --last-failed --last-failed-no-failures none; }
# Files that git does not know, and those that it ignores; caches may be new.
FILES := git status --porcelain --ignored 2>/dev/null | grep -vE '__pycache__/$$| \.cache/$$' || true

test: system-packages $(VENV)/.operator
	@{ $(FILES); } >$(VENV)/.files-before
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --config pyproject.toml --cache-dir .cache/import-linter
	$(PYTEST) -m "not slow" $(SIDE_BY_SIDE) || $(ALONE)
	@{ $(FILES); } | diff $(VENV)/.files-before - \
	    || { echo "the tests changed files in this directory (above)"; exit 1; }

.PHONY: test-slow test-matrix format docs-options system-packages clean
# Long cases, and many more examples of each property.
test-slow: system-packages $(VENV)/.operator
	$(PYTEST) -m slow
	$(PYTEST) -m "not slow" $(SIDE_BY_SIDE) --hypothesis-profile=thorough tests/property tests/unit

# Every Python that is found, with the oldest and the newest distributed that pyproject.toml allows.
# TESTS limits what runs: make test-matrix TESTS=tests/unit
TESTS ?=
test-matrix: system-packages
	@$(PYTHON) scripts/test_matrix.py -o cache_dir=.cache/pytest -m "not slow" $(SIDE_BY_SIDE) $(TESTS)

format: $(VENV)/.dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs-options: $(VENV)/.dev
	$(BIN)/python docs/reference.py

# What the tests on a real Slurm and in a real browser need, where it may be installed: root on Debian or Ubuntu. Elsewhere
# those tests skip and say so. While policy-rc.d says 101, no package starts its daemon.
SYSTEM_PROGRAMS := chromium sbatch slurmctld slurmd munged slurmdbd mariadbd podman runc newuidmap
SYSTEM_PACKAGES := slurm-wlm slurmctld slurmd slurm-client munge slurmdbd mariadb-server-core \
    podman runc uidmap catatonit chromium fonts-dejavu-core
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
	rm -rf $(VENV) .cache build dist

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

# The Dask operator, which the tests run: in an environment of its own that also has the packages of
# the development environment. There, other tests would meet its plug-ins for the discovery of clusters.
OPERATOR := $(VENV)/operator/bin/python
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(VENV)/.operator: $(VENV)/.dev pyproject.toml
	@echo "installing the Dask operator into $(VENV)/operator ..."
	@$(BIN)/python -m venv --clear --without-pip $(VENV)/operator
	@$(BIN)/python $(PACKAGES) >"$$($(OPERATOR) $(PACKAGES))/development.pth"
	@$(BIN)/pip --python $(OPERATOR) install --quiet --disable-pip-version-check --group operator
	@touch $@
