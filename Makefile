# FedAD. `make help` lists what there is to run. Needed: make and a Python 3.10, 3.11 or 3.12 with venv.
#
#   make demo DEMO_ARGS="--data wbc --rounds 5"     other arguments for `fedad demo`
#   make demo DEMO_OUT=elsewhere                    another folder, which must be new or empty
#   make test ARGS="tests/unit/test_atsa.py -x"     other arguments for pytest
#   make demo PYTHON=/path/to/python3.11            another interpreter than the one found

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV ?= .venv
PYTHON ?=
DEMO_OUT ?= demo-out
DEMO_ARGS ?=
ARGS ?= tests

BIN := $(VENV)/bin
STAMP := $(VENV)/installed

# An interpreter or package path of the caller's must not leak into the environment.
unexport PYTHONPATH
unexport PYTHONHOME

# Each candidate is run, since a name on the PATH may be a stand-in that only prints an error.
SUITABLE := import ensurepip, ssl, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
define find_python
python=""; \
for candidate in $(if $(PYTHON),"$(PYTHON)",python3.11 python3.12 python3.10 python3 python); do \
  if "$$candidate" -c '$(SUITABLE)' >/dev/null 2>&1; then python="$$candidate"; break; fi; \
done; \
if [ -z "$$python" ]; then \
  echo "FedAD needs Python 3.10, 3.11 or 3.12 with the venv and ssl modules; tried: $(if $(PYTHON),$(PYTHON),python3.11 python3.12 python3.10 python3 python)." >&2; \
  echo "Install one, or name it: make $(or $(MAKECMDGOALS),demo) PYTHON=/path/to/python3.11" >&2; \
  exit 1; \
fi
endef

.PHONY: help demo test test-fast check docs clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(STAMP) ## a federation of four hospitals on this machine; replaces demo-out/ and writes its report there
	@[ "$(DEMO_OUT)" != demo-out ] || rm -rf demo-out
	$(BIN)/fedad demo --out "$(DEMO_OUT)" $(DEMO_ARGS)

test: $(STAMP) ## every test (real image files are read from $FEDAD_DATA where it is set)
	$(BIN)/python -m pytest $(ARGS)

test-fast: $(STAMP) ## the tests that start no process
	$(BIN)/python -m pytest tests/unit -m "not slow"

check: $(STAMP) ## lint, format, types, and that all tests can be collected together
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --collect-only -qq tests >/dev/null

docs: $(STAMP) ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## remove the environment and everything that was built
	rm -rf $(VENV) build dist site demo-out .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Made again when the dependencies or the pins change; an environment whose interpreter has gone is made anew.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '$(SUITABLE)' >/dev/null 2>&1; then \
	  $(find_python); \
	  echo "creating $(VENV) with $$("$$python" --version)"; \
	  "$$python" -m venv --clear "$(VENV)"; \
	fi
	@echo "installing FedAD and its dependencies into $(VENV) (minutes the first time, mostly PyTorch)"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	@$(BIN)/python -m pip install --constraint constraints.txt --editable '.[test,check,docs]'  # its lines show the progress
	@touch $@
