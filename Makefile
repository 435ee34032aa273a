# Two commands matter to a user: `make up` and `make test`. Both need only Python >= 3.11.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
RUN    := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
COMPILED ?= .venv-compiled
CLIENTS ?= .clients
ARGS   ?=

# the rest of the tests look inside modules, which a compiled one does not allow
OUTSIDE := tests/apiserver tests/cases tests/check tests/clients tests/cluster tests/differential tests/fuzz \
           tests/listener tests/sim tests/snapshot
SOURCES := setup.py pyproject.toml $(shell find raft store watchcache apiserver_adapter chaos kvorum -name '*.py')

.PHONY: up test lint format bench wheel compiled test-compiled mutants sim sim-mutants faulty cases differential fuzz clients proto clean

up: $(RUN)              ## start three members and an API server; Ctrl-C stops them
	@exec $(BIN)/kvorum up $(ARGS)

test: $(RUN)            ## the whole suite (five to six and a half minutes on two cores)
	$(BIN)/python -m pytest -n 3 --dist worksteal $(ARGS)

lint: $(DEV)            ## ruff, mypy --strict, import rules, generated code
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(DEV)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

mutants: $(RUN)         ## every deliberate fault must be found by a test (five to eight minutes)
	$(BIN)/python -m tests.mutants

sim: $(RUN)             ## 500 whole clusters in simulation (under three minutes on two cores)
	$(BIN)/kvorum sim --seeds 1..500 --jobs 2 $(ARGS)

sim-mutants: $(RUN)     ## how many seeds find each fault that breaks safety; writes the table (ten minutes)
	$(BIN)/python -m tests.mutants.simulated --jobs 2 --write $(ARGS)

faulty: $(RUN)          ## the checkers must find every faulty member, as processes (about six minutes)
	$(BIN)/python -m tests.check.faulty $(ARGS)

cases: $(RUN)           ## the recorded etcdctl cases of ../shared, on fresh members and on a follower (ten minutes)
	$(BIN)/python -m tests.cases

differential: $(RUN)    ## 20,000 random operations against Kvorum and a real etcd: every answer the same
	$(BIN)/python -m tests.differential $(ARGS)

fuzz: $(RUN)            ## 100,000 raw requests over every RPC of three members
	$(BIN)/python -m tests.fuzz $(ARGS)

clients: $(RUN)         ## other people's client libraries, installed into $(CLIENTS), against a member
	PYTHON=$(PYTHON) tests/clients/install.sh $(CLIENTS)
	KVORUM_CLIENTS=$(CLIENTS) $(BIN)/python -m pytest tests/clients $(ARGS)

bench: compiled         ## what is measured is what a wheel installs: the hot modules compiled
	$(COMPILED)/bin/kvorum bench $(ARGS)

wheel: dist/.built      ## a wheel with the hot modules as C, in dist/ (four to nine minutes, needs a C compiler)

compiled: $(COMPILED)/.installed  ## that wheel, installed into $(COMPILED)

test-compiled: compiled ## the tests that see a member from outside, over the compiled build
	rm -rf build/outside && mkdir -p build/outside/main
	cp -R tests docs README.md pyproject.toml build/outside/main/ && ln -s ../../../shared build/outside/shared
	cd build/outside/main && $(abspath $(COMPILED))/bin/python -m pytest -n 3 --dist worksteal -m "not inside" $(OUTSIDE) $(ARGS)

proto: $(DEV)           ## regenerate the protobuf code from store/etcdpb/*.proto
	PATH="$(BIN):$$PATH" $(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. --mypy_out=. store/etcdpb/*.proto

$(RUN): pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.exit("kvorum needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; set PYTHON=") if sys.version_info < (3, 11) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV), once; this takes about a minute"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

$(DEV): $(RUN)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,dev]'
	@touch $@

dist/.built: $(SOURCES) | $(DEV)
	@echo "compiling; four to nine minutes, less when no compiled module has changed"
	@rm -rf build/lib* build/bdist* dist
	KVORUM_COMPILE=1 $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
		--wheel-dir dist .
	@touch $@

$(COMPILED)/.installed: dist/.built
	@test -x $(COMPILED)/bin/python || $(PYTHON) -m venv $(COMPILED)
	@$(COMPILED)/bin/python -m pip uninstall --quiet --disable-pip-version-check --yes kvorum
	@$(COMPILED)/bin/python -m pip install --quiet --disable-pip-version-check "$$(ls dist/kvorum-*.whl)[test]"
	@touch $@

clean:
	rm -rf $(VENV) $(COMPILED) dist .kvorum .mypy_cache .pytest_cache .ruff_cache build *.egg-info
