# Every target sets itself up on a fresh clone: Python 3.11 with its venv module is all it needs.
# Another Python: make test PYTHON=python3.12

PYTHON ?= python3
VENV := .venv
SETUP := $(PYTHON) scripts/bootstrap.py

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast lint bench docs site check test-slow test-spark40 lock clean
.NOTPARALLEL:

help: ## List the targets
	@sed -n 's/^\([a-z0-9-]*\):[^#]*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r target does; \
	do printf '  make %-14s %s\n' "$$target" "$$does"; done

setup: ## Make the environment in .venv (the other targets do it by themselves)
	@$(SETUP)

demo: setup ## Real files through the whole chain into an exactly-once table, with a crash in the middle
	@rm -rf build/demo
	@$(VENV)/bin/penstock demo --dir build/demo

test: setup ## Everything CI runs: the linters and all tests but the long matrix
	@$(VENV)/bin/python scripts/run_tests.py

test-fast: setup ## The tests without servers and Spark: unit, property, models, brokers and ledger on memory and SQLite
	@$(VENV)/bin/python scripts/run_tests.py --fast

lint: setup ## ruff, mypy --strict and the import contracts
	@$(VENV)/bin/python scripts/run_tests.py --only lint

bench: ## The benchmarks whose figures the README quotes, in environments of their own
	@$(PYTHON) scripts/bootstrap.py --venv .venv-bench-older --lock bench-older
	@$(PYTHON) scripts/bootstrap.py --venv .venv-bench --lock bench
	@.venv-bench/bin/python -m benchmarks

docs: setup ## Write the tables of docs/ anew that are made from the code
	@$(VENV)/bin/python -m scripts.broker_table
	@$(VENV)/bin/python -m scripts.ages_table

site: ## The documentation as a site with search, in build/site; fails on a dead link (an environment of its own)
	@$(PYTHON) scripts/bootstrap.py --venv .venv-site --lock docs
	@NO_MKDOCS_2_WARNING=1 .venv-site/bin/mkdocs build --strict
	@echo "build/site/index.html"

check: ## As CI does it: make test, in which a test skipped for a missing service is a failed one
	@CI=true $(MAKE) --no-print-directory test

test-slow: setup ## The long matrix
	@$(VENV)/bin/python scripts/run_tests.py --slow

test-spark40: ## The tests with Spark, on the oldest Spark we support (an environment of its own)
	@$(PYTHON) scripts/bootstrap.py --venv .venv-spark40 --lock spark40
	@.venv-spark40/bin/python scripts/run_tests.py --only spark

lock: setup ## Resolve the dependencies again and write locks/ (UPGRADE=1 takes the newest that fit)
	@$(VENV)/bin/python scripts/lock.py $(if $(UPGRADE),--upgrade)

clean: ## Remove the environments, caches and reports
	@rm -rf $(VENV) $(VENV).lock .venv-spark40 .venv-spark40.lock build dist
	@rm -rf .venv-site .venv-site.lock .venv-bench .venv-bench.lock .venv-bench-older .venv-bench-older.lock
	@rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	@find src tests scripts benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
