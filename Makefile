# The README's two commands are the first two targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
# Bytecode is kept: without it each of the many processes of the tests compiles every module anew.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-places test-slow test-matrix format docs docs-options slurm places clean
demo: $(VENV)/.examples
	@echo "running the example: half a minute"
	$(BIN)/python -m scalable run examples/climate-ensemble/scalable.yaml \
	    --target local --workflow examples/climate-ensemble/workflow.py

# Tests run side by side, also on few cores: most of them wait for processes, clocks and queues.
# ORDER=random runs the files in another order each time; the order that is printed is ORDER=<number>.
ORDER ?=
PYTEST := $(BIN)/pytest -o cache_dir=.cache/pytest
SIDE_BY_SIDE := -n auto --dist loadfile --no-loadscope-reorder $(addprefix --order=,$(ORDER))
# Files that git does not know, and those that it ignores; caches may be new.
FILES := git status --porcelain --ignored 2>/dev/null | grep -vE '__pycache__/$$| \.cache/$$' || true
define unchanged
{ $(FILES); } | diff $(VENV)/.files-before - || { echo "the tests changed files in this directory (above)"; exit 1; }
endef

test: $(VENV)/.test slurm
	@echo "make test: 4 to 11 minutes on 2 cores"
	@{ $(FILES); } >$(VENV)/.files-before
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/lint-imports --cache-dir .cache/import-linter | tail -n 4
	$(BIN)/mypy
	$(PYTEST) -m "not slow" $(SIDE_BY_SIDE)
	@$(unchanged)

# Slurm in full, Kubernetes, clouds, containers, browsers, JupyterLab; and what ends, kills or hinders
# processes of this machine.
test-places: $(VENV)/.places places
	@echo "make test-places: 15 to 35 minutes on 2 cores"
	@{ $(FILES); } >$(VENV)/.files-before
	$(PYTEST) -m "not slow" --timeout 420 $(SIDE_BY_SIDE) tests/places tests/processes
	@$(unchanged)

# Long cases, and many more examples of each property.
test-slow: $(VENV)/.places places
	$(PYTEST) -m slow tests
	$(PYTEST) -m "not slow" $(SIDE_BY_SIDE) --hypothesis-profile=thorough tests/property tests/unit

# Every Python that is found, with the oldest and the newest distributed that pyproject.toml allows.
# TESTS limits what runs: make test-matrix TESTS=tests/unit
TESTS ?=
test-matrix: slurm
	@$(PYTHON) scripts/test_matrix.py -o cache_dir=.cache/pytest -m "not slow" $(SIDE_BY_SIDE) $(TESTS)

format: $(VENV)/.test
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The documentation as a site, in .cache/site. NO_MKDOCS_2_WARNING silences the news of its theme.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

docs-options: $(VENV)/.test
	$(BIN)/python docs/reference.py

clean:
	rm -rf $(VENV) .cache build dist

# The virtual environment --------------------------------------------------------------------------

INSTALL := @scripts/environment $(PYTHON) $(VENV)
$(VENV)/.examples: pyproject.toml scripts/environment
	@echo "installing scalable and the example's model into $(VENV): about a minute"
	$(INSTALL) $@ --editable '.[examples]'

$(VENV)/.test: pyproject.toml scripts/environment
	@echo "installing scalable and what its tests need into $(VENV): about two minutes"
	$(INSTALL) $@ --editable '.[examples]' --group test
	@touch $(VENV)/.examples

$(VENV)/.docs: pyproject.toml scripts/environment
	@echo "installing what the site needs into $(VENV): half a minute"
	$(INSTALL) $@ --editable . --group docs

# The Dask operator has an environment of its own, which also has the packages of the other. There, tests
# would meet its plug-ins for the discovery of clusters.
OPERATOR := $(VENV)/operator/bin/python
PACKAGES := -c 'import sysconfig; print(sysconfig.get_path("purelib"))'
$(VENV)/.places: pyproject.toml scripts/environment
	@echo "installing what the tests of places need into $(VENV): about three minutes"
	$(INSTALL) $(VENV)/.test --editable '.[examples]' --group test --group places --group docs
	@$(BIN)/python -m venv --clear --without-pip $(VENV)/operator
	@$(BIN)/python $(PACKAGES) >"$$($(OPERATOR) $(PACKAGES))/development.pth"
	@$(BIN)/pip --python $(OPERATOR) install --quiet --disable-pip-version-check --group operator
	@touch $(VENV)/.examples $@

# Programs of the system ---------------------------------------------------------------------------

# Installed where that may be done: root on Debian or Ubuntu. Elsewhere the tests that need them are
# skipped. While policy-rc.d says 101, no package starts its daemon.
POLICY := /usr/sbin/policy-rc.d
APT := DEBIAN_FRONTEND=noninteractive timeout 900 apt-get -qq -o DPkg::Lock::Timeout=300

slurm: PROGRAMS := sbatch slurmctld slurmd munged
slurm: SYSTEM_PACKAGES := slurm-wlm slurmctld slurmd slurm-client munge
places: PROGRAMS := chromium sbatch slurmctld slurmd munged slurmdbd mariadbd podman runc newuidmap catatonit
places: SYSTEM_PACKAGES := slurm-wlm slurmctld slurmd slurm-client munge slurmdbd mariadb-server-core \
    podman runc uidmap catatonit chromium fonts-dejavu-core
slurm places:
	@type $(PROGRAMS) >/dev/null 2>&1 && exit 0; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	    for program in $(PROGRAMS); do type $$program >/dev/null 2>&1 || missing="$${missing:-} $$program"; done; \
	    echo "not here, and not installed without root and apt-get:$$missing; tests that need them are skipped"; \
	    exit 0; \
	fi; \
	echo "installing $(SYSTEM_PACKAGES) ..."; \
	log=$$(mktemp); trap 'rm -f "$$log"' EXIT; \
	if [ ! -e $(POLICY) ]; then \
	    trap 'rm -f "$$log" $(POLICY)' EXIT; \
	    printf '#!/bin/sh\nexit 101\n' >$(POLICY); chmod 755 $(POLICY); \
	fi; \
	{ $(APT) update && $(APT) install -y --no-install-recommends $(SYSTEM_PACKAGES); } \
	    >"$$log" 2>&1 </dev/null \
	    || { tail -n 20 "$$log"; echo "not installed: tests that need them are skipped"; }
