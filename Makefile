# Torchyard: `make run` and `make test` install their missing dependencies before they start.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.setup-done
# TensorFlow has a separate environment on the tests' hosts, since it needs other versions of packages than torch.
TENSORFLOW := tensorflow-cpu==2.21.0
TENSORFLOW_VENV := .venv-tensorflow
TENSORFLOW_STAMP := $(TENSORFLOW_VENV)/.setup-done
# Packages of other projects, with the torch of .venv; only `make proof` needs them.
UPSTREAM := accelerate==1.15.0 lightning==2.6.6 transformers==5.23.0
# torchtitan needs a GPU.
UPSTREAM_GPU := $(if $(shell command -v nvidia-smi),torchtitan==0.3.0)
UPSTREAM_VENV := .venv-upstream
UPSTREAM_STAMP := $(UPSTREAM_VENV)/.setup-done
# More workers than a small machine has cores, because many tests mainly wait for hosts.
TEST_PROCESSES ?= 4
EXAMPLE := examples/digits/this-computer.yaml

# Debian packages for Qt, for the lab (real SSH hosts in namespaces, a Slurm cluster), and for a virtual environment.
APT_PACKAGES := libegl1 libgl1 libxkbcommon0 libdbus-1-3 libfontconfig1 libxcb-cursor0 libxcb-icccm4 libxcb-keysyms1 \
                libxkbcommon-x11-0 libxcb-shape0 fonts-inter fonts-noto-cjk xvfb openbox xdotool xterm \
                iproute2 openssh-server openssh-client util-linux procps tcsh gcc libc6-dev python3-venv git \
                postgresql at-spi2-core dbus \
                slurmctld slurmd slurm-client munge slurmdbd mariadb-server
NEEDS := libEGL.so.1:libegl1 libGL.so.1:libgl1 libxkbcommon.so.0:libxkbcommon0 libdbus-1.so.3:libdbus-1-3 \
         libfontconfig.so.1:libfontconfig1 libxcb-cursor.so.0:libxcb-cursor0 \
         ip:iproute2 tc:iproute2 /usr/sbin/sshd:openssh-server ssh-keygen:openssh-client unshare:util-linux \
         nsenter:util-linux tcsh:tcsh gcc:gcc git:git psql:postgresql Xvfb:xvfb \
         openbox:openbox xdotool:xdotool xterm:xterm dbus-run-session:dbus \
         /usr/libexec/at-spi-bus-launcher:at-spi2-core \
         /usr/sbin/slurmctld:slurmctld /usr/sbin/slurmd:slurmd sbatch:slurm-client /usr/sbin/munged:munge \
         /usr/sbin/slurmdbd:slurmdbd /usr/sbin/mariadbd:mariadb-server

.PHONY: help setup tensorflow upstream run collect proof screenshots test test-quick lint lock bench clean

help:  ## Lists the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

setup: $(STAMP)  ## Creates .venv and installs missing dependencies (does nothing if .venv is up to date)

$(STAMP): pyproject.toml Makefile tools/system-packages.sh
	@PYTHON="$(PYTHON)" tools/system-packages.sh "$(APT_PACKAGES)" $(NEEDS)
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "Torchyard needs Python 3.11 or newer here: install it (Debian: apt-get install python3 python3-venv), or name one with 'make PYTHON=/path/to/python3 …'."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Torchyard and what it needs into $(VENV) (torch is large: some minutes the first time) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "torch==2.13.0"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[train,dev]"
	@touch $(STAMP)

tensorflow: $(TENSORFLOW_STAMP)  ## Creates .venv-tensorflow for the tests of examples/tensorflow

$(TENSORFLOW_STAMP): Makefile | $(STAMP)
	@echo "Installing TensorFlow into $(TENSORFLOW_VENV), for tests alone (1.6 GB: a minute the first time) …"
	@test -x $(TENSORFLOW_VENV)/bin/python || $(PYTHON) -m venv $(TENSORFLOW_VENV)
	@$(TENSORFLOW_VENV)/bin/python -m pip install --quiet --disable-pip-version-check "$(TENSORFLOW)" \
	    && touch $(TENSORFLOW_STAMP) || echo "TensorFlow is not installed: its tests are skipped; in CI they fail."

upstream: $(UPSTREAM_STAMP)  ## Creates .venv-upstream, in which `make proof` runs scripts of other projects

$(UPSTREAM_STAMP): Makefile | $(STAMP)
	@echo "Installing accelerate, lightning and transformers into $(UPSTREAM_VENV) (a minute) …"
	@test -x $(UPSTREAM_VENV)/bin/python || $(PYTHON) -m venv $(UPSTREAM_VENV)
	@$(BIN)/python -c "import site; print(site.getsitepackages()[0])" \
	    >"$$($(UPSTREAM_VENV)/bin/python -c 'import site; print(site.getsitepackages()[0])')/torch.pth"
	@$(UPSTREAM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(UPSTREAM) $(UPSTREAM_GPU) \
	    && touch $(UPSTREAM_STAMP) || echo "They are not installed: their tests are skipped; in CI they fail."

run: setup  ## Opens the window with the example; without a display, launches it and follows it until it ends
	@printf 'version: 1\nhosts:\n  - {name: this-computer, local: true}\n' >$(VENV)/example-fleet.yaml
	@said=$$($(BIN)/torchyard --fleet $(VENV)/example-fleet.yaml deploy 2>&1) || { echo "$$said"; exit 1; }
	@if [ -n "$$DISPLAY$$WAYLAND_DISPLAY" ] || [ "$$(uname)" = Darwin ]; then \
	    $(BIN)/torchyard-gui --fleet $(VENV)/example-fleet.yaml $(EXAMPLE); \
	else \
	    $(BIN)/torchyard --fleet $(VENV)/example-fleet.yaml run $(EXAMPLE); \
	fi

# Bytecode is always written: hundreds of short-lived interpreters read the bytecode that the first one writes.
test test-quick proof collect bench: export PYTHONDONTWRITEBYTECODE =

test: setup tensorflow  ## Runs all tests, including those with real SSH hosts and real training
	@$(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile --no-loadscope-reorder \
	    --durations=40 --durations-min=5

collect: setup  ## Imports all tests, which also writes their bytecode
	@$(BIN)/python -m pytest --collect-only -qq >$(VENV)/collected || { cat $(VENV)/collected; exit 1; }

proof: setup tensorflow upstream  ## Runs the tests that take too long for `make test`, and writes their tables into docs (needs root)
	@$(BIN)/python -m pytest -m proof tests
	@$(BIN)/python -m tests.upstream

screenshots: setup  ## Renders every page of the window, light and dark, into docs/screenshots
	@$(BIN)/python -m tools.screenshots docs/screenshots

test-quick: setup  ## Runs the tests without hosts and training (a few minutes)
	@$(BIN)/python -m pytest -m "not lab and not train" --numprocesses=$(TEST_PROCESSES) --dist=loadfile

lint: setup  ## Checks style, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

lock: setup  ## Writes requirements.lock: the desktop's dependencies, each with its version and hashes
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.9"
	@$(BIN)/uv pip compile pyproject.toml --extra postgres --universal --python-version 3.11 --generate-hashes \
		--no-annotate --no-header --quiet --output-file requirements.lock

bench: setup  ## Measures the documented performance, as ratios (some minutes, needs root)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	@$(BIN)/python -m benchmarks

clean:  ## Removes the virtual environments and all caches
	rm -rf $(VENV) $(TENSORFLOW_VENV) $(UPSTREAM_VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache *.egg-info
