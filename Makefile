# All commands of the project. `make VENV=path` uses another virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OLDEST := $(VENV)-oldest
INSTALL := $(BIN)/python -m pip install --quiet
RUN ?= runs/demo
SITE ?= site

.PHONY: help install demo test slow oldest lint check lock figures docs clean

help:
	@echo "make demo    pretrain on the digits, evaluate, write a report (two minutes on two cores)"
	@echo "make test    run the tests            make slow    run the slow ones too"
	@echo "make lint    ruff and pyright         make check   lint and test"
	@echo "make oldest  test with the oldest allowed versions   make lock   pin what is new in pyproject.toml"
	@echo "make docs    build the documentation  make figures the papers' figures at size small, into results/"
	@echo "make clean   remove the environment, runs and caches"

$(VENV)/.pip: Makefile
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.installed: $(VENV)/.pip pyproject.toml constraints.txt
	$(INSTALL) --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.%: $(VENV)/.installed
	$(INSTALL) --constraint constraints.txt --editable ".[onnx]" --group $*
	@touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/fullrank pretrain digits --out $(RUN) --overwrite
	$(BIN)/fullrank evaluate $(RUN)
	$(BIN)/fullrank evaluate $(RUN) --probes few-shot

test: $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal

slow: $(VENV)/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

oldest: $(VENV)/.pip
	$(INSTALL) uv
	$(BIN)/uv venv --quiet --python 3.11 --seed --clear $(OLDEST)
	$(BIN)/uv pip install --quiet --python $(OLDEST) --resolution lowest-direct --editable ".[onnx]" --group test
	$(OLDEST)/bin/python -m pytest -m "not slow" -n 2 --dist worksteal -o filterwarnings=ignore

lock: $(VENV)/.pip
	$(INSTALL) uv
	$(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --extra onnx --group test --group lint --group docs \
		--no-annotate --quiet --custom-compile-command "make lock" --output-file constraints.txt

lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint test

figures: install
	for paper in frossl stepwise directclr dynamics; do $(BIN)/fullrank reproduce $$paper --out results --overwrite $(DATA); done

docs: $(VENV)/.docs
	OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict --site-dir $(SITE)

clean:
	rm -rf $(VENV) $(OLDEST) runs site .pytest_cache .ruff_cache .hypothesis
