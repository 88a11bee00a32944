# `make report` builds the book, `make test` checks everything that is fast. Both set up .venv by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: report test test-slow check-site clean

report: .venv/.report
	@$(BIN)/reprolib build

test: .venv/.test
	$(BIN)/ruff check . && $(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

test-slow: .venv/.test
	$(BIN)/pytest -m slow

check-site: .venv/.test
	$(BIN)/pytest -n 2 -m site tests/site

# A change of the lock or of the requirements installs again; a change of the code does not (editable).
.venv/.report: pyproject.toml constraints.txt
	@echo "Setting up .venv (a few minutes, once) ..."
	@$(PYTHON) -m venv --clear .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@$(BIN)/reprolib weights || echo "The page 'Does the record still hold?' will say that nothing was judged again."
	@touch $@

.venv/.test: .venv/.report
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,train]"
	@touch $@

clean:
	rm -rf _build book/chapters book/generated
