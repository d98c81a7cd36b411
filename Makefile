# Targets for people working on Draftwire. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
VENV5 := .venv-transformers5
BIN := $(VENV)/bin
PACKAGES := protocol edge_client cloud_verifier export
PIP_INSTALL := pip install --quiet --disable-pip-version-check

.PHONY: install demo demo-model test soak test-transformers5 style format types clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@echo "Installing into $(VENV): a minute or two, and 2 GB"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP_INSTALL) -c constraints.txt -e ".[dev]"
	touch $@

$(VENV5)/.installed: pyproject.toml constraints-transformers5.txt
	$(PYTHON) -m venv $(VENV5)
	$(VENV5)/bin/$(PIP_INSTALL) -c constraints-transformers5.txt -e ".[edge,cloud,export,test]"
	touch $@

demo-model: install
	$(BIN)/draftwire-export demo-model

demo: install
	$(BIN)/draftwire demo

test: demo-model
	$(BIN)/pytest

# Load, faults and leaks for longer than `make test` has: SOAK minutes of mixed traffic, a quarter of that of garbage,
# and the long versions of the rest.
SOAK ?= 40
soak: demo-model
	DRAFTWIRE_SOAK=$(SOAK) $(BIN)/pytest tests/soak tests/integration/test_fuzz.py tests/edge_client/test_regret.py -s

# The verifier and the fused builder on transformers 5.
test-transformers5: $(VENV5)/.installed demo-model
	$(VENV5)/bin/pytest tests/cloud_verifier tests/export

style: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The repository root is the package, so mypy sees it through a link of the package's name.
types: install build/types/draftwire
	MYPYPATH=build/types $(BIN)/mypy $(addprefix -p draftwire.,$(PACKAGES))

build/types/draftwire:
	mkdir -p build/types
	ln -sfn ../.. $@

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
