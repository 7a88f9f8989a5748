# Every target sets itself up on a fresh clone: Python 3.11 with its venv module is all it needs.
# Another Python: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
SETUP := $(PYTHON) scripts/bootstrap.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint bench docs site check test-slow test-spark40 lock dist clean
.NOTPARALLEL:

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target does; \
	do printf '  make %-14s %s\n' "$$target" "$$does"; done

setup: ## Create the environment in .venv (the other targets do so if needed)
	@$(SETUP)

demo: setup ## Kill a worker, then an ingest, and prove that nothing is lost or doubled
	@rm -rf build/demo
	@$(VENV)/bin/penstock demo --dir build/demo

test: setup ## Run what CI runs: the linters, and all tests but the long matrix
	@$(VENV)/bin/python scripts/run_tests.py

test-fast: setup ## Run the tests without servers and Spark: unit, property, models, brokers and ledger on memory and SQLite
	@$(VENV)/bin/python scripts/run_tests.py --fast

lint: setup ## Run ruff, mypy --strict, the import contracts and the language check
	@$(VENV)/bin/python scripts/run_tests.py --only lint

bench: ## Run the benchmarks, in their own environments (CHECK=1: compare the README's figures with bounds)
	@$(PYTHON) scripts/bootstrap.py --venv .venv-bench-older --lock bench-older
	@$(PYTHON) scripts/bootstrap.py --venv .venv-bench --lock bench
	@.venv-bench/bin/python -m benchmarks $(if $(CHECK),--check) $(if $(ALLOW_MISSING),--allow-missing)

docs: setup ## Rewrite the tables in docs/ that are generated from code
	@$(VENV)/bin/python -m scripts.broker_table
	@$(VENV)/bin/python -m scripts.ages_table

site: ## Build the documentation as a site with search in build/site; fails on a dead link
	@$(PYTHON) scripts/bootstrap.py --venv .venv-site --lock docs
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict
	@echo "build/site/index.html"

check: ## As in CI: make test, with a skipped test for a missing service counted as failed
	@CI=true $(MAKE) --no-print-directory test

test-slow: setup ## Run the long matrix of tests
	@$(VENV)/bin/python scripts/run_tests.py --slow

test-spark40: ## Run the tests with Spark on the oldest supported Spark, in its own environment
	@$(PYTHON) scripts/bootstrap.py --venv .venv-spark40 --lock spark40
	@.venv-spark40/bin/python scripts/run_tests.py --only spark

lock: setup ## Resolve the dependencies and write locks/ (UPGRADE=1: the newest that fit)
	@$(VENV)/bin/python scripts/lock.py $(if $(UPGRADE),--upgrade)

dist: ## Build and check sdist and wheel, and install each extra alone (TAG=v0.1.0 compares the version)
	@$(PYTHON) scripts/bootstrap.py --venv .venv-release --lock release
	@.venv-release/bin/python -m scripts.release_check $(if $(TAG),--tag $(TAG))

clean: ## Remove the environments, caches and reports
	@rm -rf $(VENV) $(VENV).lock .venv-spark40 .venv-spark40.lock build dist
	@rm -rf .venv-release .venv-release.lock .venv-site .venv-site.lock
	@rm -rf .venv-bench .venv-bench.lock .venv-bench-older .venv-bench-older.lock
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
