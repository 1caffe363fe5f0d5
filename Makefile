# `make run` and `make test` install what they need into .venv; Python 3.11 or newer (with pip and venv) and make must be there.
PYTHON ?= python3
BIN := .venv/bin
# How many tests run at once. Many wait for other processes, so this may exceed the number of cores.
WORKERS ?= 3
# Let Python keep its bytecode: otherwise every worker compiles the tests again in every run.
unexport PYTHONDONTWRITEBYTECODE

# $(call wanted,PROGRAM,DEBIAN PACKAGES,WHAT IS MISSED WITHOUT IT): installs it with apt if we are root, else goes on without.
define wanted
@command -v $(1) >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "Installing $(2) with apt ..." && \
	{ apt-get install -y -qq --no-install-recommends $(2) || { apt-get update -qq && apt-get install -y -qq --no-install-recommends $(2); }; } >/dev/null 2>&1; } || \
	echo "$(1) is missing and cannot be installed here: $(3)."
endef

.PHONY: help run test test-long check compiled-tests format bench shape screens clean

help:
	@echo "make run        install what is needed and open a chat (ARGS='-c' passes options to talaria)"
	@echo "make test       install what is needed and run every check and test"
	@echo "make test-long  run the long tests: random kills, power cuts and fuzzing, thousands of times"
	@echo "make check      run ruff, pyright and import-linter"
	@echo "make format     fix and format the code with ruff"
	@echo "make bench      measure Talaria against minimal programs that do the same work"
	@echo "make shape      count the code: its size, and how much of it five paths touch"
	@echo "make screens    take the pictures in docs/screens again"
	@echo "make clean      remove .venv and the caches of the tools"

run: .venv/.ready
	@$(BIN)/talaria $(ARGS); status=$$?; $(BIN)/python -m talaria.cli.command_name >&2; exit $$status

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

# Runs beside pyright, which leaves a core idle. Errors are ignored here: they show up again when the tests run.
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
		echo "Talaria needs Python 3.11 or newer. If you have one under another name: make PYTHON=..."; exit 1; }
	@echo "Installing Talaria and the Python packages it needs into .venv in this folder: about 100 MB, from PyPI."
	@echo "\`make clean\` removes them. Settings and conversations will be kept in ~/.talaria."
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	@touch $@

.venv/.ready: .venv/.pip pyproject.toml
	@[ ! -e $@ ] || echo "pyproject.toml has changed: updating the packages in .venv ..."
	@$(BIN)/python -m pip install --quiet --editable .
	$(if $(filter Linux,$(shell uname)),$(call wanted,bwrap,bubblewrap,commands will run in a weaker sandbox. Install the package bubblewrap to have the strict one))
	@touch $@

.venv/.ready-dev: .venv/.ready pyproject.toml tests/npm/package-lock.json
	@echo "Installing what the checks and tests need into .venv: about 800 MB more."
	$(call wanted,openssl,openssl,tests that need it are skipped)
	$(call wanted,chromium,chromium,tests of the browser are skipped)
	$(call wanted,sshd,openssh-server,tests of commands over ssh are skipped)
	$(call wanted,podman,podman runc,tests of commands in containers are skipped)
	$(call wanted,gh,gh,the test of gh in the sandbox is skipped)
	$(call wanted,tmux,tmux,tests of the screen in tmux are skipped)
	$(call wanted,zsh,zsh,tests of completion in zsh are skipped)
	$(call wanted,fish,fish,tests of completion in fish are skipped)
	$(call wanted,go,golang-go,the tests with a Go project are skipped)
	@$(BIN)/python -m pip install --quiet --editable . --group dev
	@$(BIN)/python -m tests.npm_packages >/dev/null || echo "npm cannot install packages here: tests that need them are skipped."
	@touch $@
