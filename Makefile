# `make run` and `make test` set up all they need in .venv; only Python 3.11+, pip and make must be there.
PYTHON ?= python3
BIN := .venv/bin
# Of pytest: many tests wait for other processes, so more than two cores need.
WORKERS ?= 3
# Tests are compiled once, and not by every worker in every run.
unexport PYTHONDONTWRITEBYTECODE

# $(call wanted,PROGRAM,PACKAGE,WHAT IF NOT): installs a Debian package where that is possible, and else goes on without.
define wanted
@command -v $(1) >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing $(2) ..." && \
	{ apt-get install -y -qq --no-install-recommends $(2) || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(2); }; } >/dev/null 2>&1; } || \
	echo "$(1) is not there and cannot be installed here: $(3)"
endef

.PHONY: help run test test-long check compiled-tests format bench shape screens clean

help:
	@echo "make run        set up and open a chat (ARGS='-c' passes options on)"
	@echo "make test       set up and run every check and test"
	@echo "make test-long  the long runs: random kills, power cuts and fuzzing by the thousand"
	@echo "make check      ruff, pyright, import-linter"
	@echo "make bench      our times beside their floors, as ratios"
	@echo "make shape      how large the code is, and how much of it five paths touch"
	@echo "make screens    the pictures in docs/screens, as the screen is now"

run: .venv/.ready
	@$(BIN)/talaria $(ARGS)

test: .venv/.ready-dev
	@$(MAKE) --no-print-directory -j 2 check compiled-tests
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m "not long"

test-long: .venv/.ready-dev
	$(BIN)/pytest -n $(WORKERS) --dist loadgroup -m long

check: .venv/.ready-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

# Beside pyright, which leaves a core idle. What is wrong with a test is said when the tests run.
compiled-tests: .venv/.ready-dev
	@$(BIN)/pytest --collect-only -qq >/dev/null 2>&1 || true

format: .venv/.ready-dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.ready-dev
	$(BIN)/python -m benchmarks

shape: .venv/.ready-dev
	@$(BIN)/python -m benchmarks.shape

screens: .venv/.ready-dev
	$(BIN)/python -m tests.scenarios.screen.pictures

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis

.venv/.pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Talaria needs Python 3.11 or newer; set PYTHON=... to one."; exit 1; }
	@echo "Setting up .venv (once) ..."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

.venv/.ready: .venv/.pip pyproject.toml
	@$(BIN)/python -m pip install --quiet --editable .
	$(call wanted,bwrap,bubblewrap,commands run in a weaker sandbox. Install the package bubblewrap for the strict one.)
	@$(BIN)/python -m talaria.cli.command_name
	@touch $@

.venv/.ready-dev: .venv/.ready pyproject.toml
	$(call wanted,openssl,openssl,the tests that need it will say so.)
	$(call wanted,chromium,chromium,the tests of the browser will say so.)
	$(call wanted,sshd,openssh-server,the tests of commands over ssh will say so.)
	$(call wanted,podman,podman runc,the tests of commands in containers will say so.)
	$(call wanted,gh,gh,the test of gh in the sandbox will say so.)
	$(call wanted,tmux,tmux,the tests of the screen in tmux will say so.)
	$(call wanted,zsh,zsh,the tests of completion in zsh will say so.)
	$(call wanted,fish,fish,the tests of completion in fish will say so.)
	$(call wanted,go,golang-go,the tests of a day with Go will say so.)
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@touch $@
