# Everything a learner types. Each target makes ready first what it needs; the second time that takes a second.
#     make lab     make test     make doctor     make run NN=01     make setup PYTHON=python3.12
PYTHON ?= python3
PY := .venv/bin/python
# An environment that was moved with its folder is made ready again.
READY := .venv/ready-$(shell pwd -P | cksum | cut -d' ' -f1)

.PHONY: setup setup-kafka servers lab test test-docker test-long test-browser bench run doctor league clean
.DEFAULT_GOAL := lab

setup: $(READY)
	@$(PY) -m labkit setup

setup-kafka: $(READY)
	@$(PY) -m labkit setup-kafka

lab: setup
	@$(PY) -m labkit lab

servers: $(READY)
	@$(PY) -m labkit setup --all

test: servers
	@$(PY) -m pytest $(ARGS)

bench: servers
	@$(PY) tests/bench.py

# The same on containers: with the engine that answers, else with one of its own that is stopped at the end.
test-docker: $(READY)
	@$(PY) docker/test.py $(ARGS)

test-long: servers
	@$(PY) -m pytest -m long $(ARGS)

# What only these tests need, a browser and what drives it, comes when they are first asked for.
test-browser: setup
	@$(PY) -c 'import playwright' 2> /dev/null || \
	  $(PY) -m pip install -q --disable-pip-version-check -c requirements.lock --no-build-isolation \
	    -e ".[browser]" || $(say) \
	  "Playwright, which drives the browser, could not be installed: see the lines above." \
	  "The machine may be offline or its disk full, or there is no build of it for this Python." \
	  "Mend that, then type again: make test-browser"; exit 1; }
	@command -v chromium > /dev/null || sh labkit/apt.sh / chromium || $(say) \
	  "Chromium is not on this machine, and apt-get could not install it: see the lines above." \
	  "Installing takes the rights of root, and a system that has apt-get and this package." \
	  "Install chromium in this system's own way, then type again: make test-browser"; exit 1; }
	@$(PY) -m pytest -m browser tests/browser $(ARGS)

run: setup
	@$(if $(NN),:,$(say) "Which notebook? None was named." "make takes it as a variable." \
	  "Type its number: make run NN=01    (shortened times: make run NN=01 ARGS=--quick)"; exit 1; })
	@$(PY) -m labkit run $(NN) $(ARGS)

doctor: $(READY)
	@$(PY) -m labkit doctor $(ARGS)

# Every lock of the course in one storm of faults, for ten minutes; ARGS="--minutes 60 --seed 8" for another one.
league: servers
	@$(PY) -m labkit league $(ARGS)

clean: $(READY)
	@$(PY) -m labkit clean

say = { printf '%s\n' >&2
PACKAGE := $(notdir $(PYTHON))-venv

$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || $(say) \
	  "$(PYTHON) is missing, or older than Python 3.11." \
	  "Older systems bring a newer Python under a name of its own: python3.11, python3.12, ..." \
	  "Install one with its venv package, then type: make setup PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2> /dev/null || $(say) \
	  "$(PYTHON) cannot make a virtual environment: venv or ensurepip is missing." \
	  "Debian and Ubuntu keep them in a package of their own." \
	  "Type: sudo apt-get install $(PACKAGE)    and then: make setup"; exit 1; }
	@$(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 1; }

$(READY): pyproject.toml requirements.lock | $(PY)
	@echo "Installing the Python packages into .venv (once; a minute or two) ..."
	@$(PY) -m pip install -q --disable-pip-version-check -c requirements.lock setuptools && \
	$(PY) -m pip install -q --disable-pip-version-check -c requirements.lock --no-build-isolation \
	  -e ".[queues,database,libraries,test]" || $(say) \
	  "The Python packages could not be installed: see the lines above." \
	  "The machine may be offline or its disk full, or there is no build of a package for this Python." \
	  "Mend that, then type again: make setup"; exit 1; }
	@rm -f .venv/ready-* && touch $@
