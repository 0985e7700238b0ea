# Every target sets up what it needs: `make demo` and `make test` work on a fresh checkout.
.DEFAULT_GOAL := help
.PHONY: help setup lint test docs guides fuzz soak bench zoo demo release proto clean

VENV_PYTHON := .venv/bin/python

# Images set it for smaller layers. Every worker of pytest would rewrite the asserts of its plugins again.
unexport PYTHONDONTWRITEBYTECODE

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

.venv/.complete: setup.cfg constraints.txt scripts/setup.sh
	@scripts/setup.sh

setup: .venv/.complete ## create .venv from constraints.txt

lint: .venv/.complete ## style, types, who may import whom, circles of imports, American spelling
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy
	.venv/bin/lint-imports --config setup.cfg
	$(VENV_PYTHON) scripts/lint.py

# pytest-xdist hangs after it has replaced a worker that crashed: the first crash ends the tests.
test: .venv/.complete ## the tests
	$(VENV_PYTHON) -m pytest --numprocesses=auto --maxprocesses=5 --max-worker-restart=0 --no-loadscope-reorder

docs: .venv/.complete ## the documentation as a site, in build/docs, and its checks in Chromium
	$(VENV_PYTHON) -m sphinx --builder html --fail-on-warning --keep-going --quiet docs build/docs
	$(VENV_PYTHON) -m pytest -m docs tests/browser/test_docs_browser.py
	@echo "docs: build/docs/index.html"

guides: .venv/.complete ## the commands of all documents, executed as they stand there
	$(VENV_PYTHON) -m pytest -m guides --numprocesses=2 -o faulthandler_timeout=660 tests/guides

fuzz: .venv/.complete ## parsers of network and files, with random input for SECONDS each (60); TARGETS="stream.*"
	$(VENV_PYTHON) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .[fuzz]
	$(VENV_PYTHON) -m tests.fuzz --seconds $(or $(SECONDS),60) $(TARGETS)

soak: .venv/.complete ## the long tests: FAULTS=1000 random ones, jobs for MINUTES=30, more examples of properties
	SOAK_FAULTS=$(or $(FAULTS),1000) SOAK_MINUTES=$(or $(MINUTES),30) $(VENV_PYTHON) -m pytest -m soak \
		-o faulthandler_timeout=3600
	$(VENV_PYTHON) -m pytest tests/property --numprocesses=auto --hypothesis-profile=thorough

bench: .venv/.complete ## the benchmarks; prints ratios and writes their page
	$(VENV_PYTHON) -m benchmarks

zoo: .venv/.complete ## train the architectures of model libraries; writes their page; ZOO="bert t5*" for some
	$(VENV_PYTHON) -m benchmarks.zoo $(ZOO)

demo: .venv/.complete ## compile and train FC-MNIST on a simulated CS system
	@$(VENV_PYTHON) scripts/demo.py

release: .venv/.complete ## the wheel and the sdist of this version in dist/, checked; ARGS=--snapshot for another state
	$(VENV_PYTHON) scripts/release.py $(ARGS)

proto: .venv/.complete ## generate the gRPC code of the control plane
	$(VENV_PYTHON) -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. cs_system/proto/cs_system.proto

clean: ## remove the virtual environment and all caches
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info build dist
