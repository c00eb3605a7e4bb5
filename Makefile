# Needs git, make and Python 3.11 or later; everything else goes into .venv, at locked versions. Several Pythons side by
# side: make test VENV=.venv-3.13 PYTHON=python3.13

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
# Where it is set, every run, and every program that a test starts, would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
FUZZ_READY := $(VENV)/.ready-fuzz
UI_READY := $(VENV)/.ready-ui
DOCS_READY := $(VENV)/.ready-docs
# So many pips install one part of a lock each: pip is busy on one core, mostly with the index of each package.
PARTS := 3
PIP = $(BIN)/python -m pip --quiet --disable-pip-version-check install

# python3 where it is new enough, otherwise the newest that is found; `make test PYTHON=/path/to/python` chooses another.
PYTHON ?= $(shell { python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' && command -v python3 || \
	scripts/pythons | tail -n 1 | cut -d ' ' -f 2-; } 2>/dev/null)

# Only `make lock` needs uv; it gets its own copy, so that locks do not differ between contributors.
UV_VERSION := 0.13.7
COMPILE = $(BIN)/uv pip compile --quiet --system-certs --upgrade --universal --python-version 3.11 --generate-hashes \
	--no-build --no-header --no-annotate

# Of Debian and Ubuntu: what runs containers, and what they are made of.
NODE_PACKAGES := runc containernetworking-plugins busybox-static iproute2
# The browser of `make ui`, and letters for its pictures.
UI_PACKAGES := chromium fonts-dejavu-core
CHROMIUM ?= $(shell { command -v chromium || command -v chromium-browser || command -v google-chrome; } 2>/dev/null)
PICTURES ?=

# Seconds for each fuzz target; FUZZ_RUNS=1000000 sets the number of inputs instead.
FUZZ_SECONDS ?= 2
FUZZ_RUNS ?=
# The same inputs each time; 0 chooses others each time.
FUZZ_SEED ?= 0
FUZZ_END = -seed=$(FUZZ_SEED) $(if $(FUZZ_RUNS),-runs=$(FUZZ_RUNS),-max_total_time=$(FUZZ_SECONDS))

# Packages and the least branch coverage of each, in per cent. `make test COVERAGE=` measures nothing, which is faster.
COVERAGE ?= core=95 wire=95 vendors=95 scheduler=90 node=90 kube=90 services=90 monitor=90 http11=90 host=90

# One more than there are cores: a quarter of the time tests wait for other processes.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL = --quiet --numprocesses=$(WORKERS) --dist=worksteal
TESTED = tests/model tests/property tests/integration tests/contract tests/robustness tests/unit
# About half of the end-to-end tests, by time. Most of what waits is here: it runs beside the others, on a control plane
# of its own.
E2E_BESIDE = $(addprefix tests/e2e/test_,$(addsuffix _real.py,claims defrag failpoints gangs image preemption restarts scheduling))
PROPERTIES ?= tests/property
TYPED = src tests bench scripts tools

define heading
@printf '\n==> %s\n' "$(1)"
endef

.PHONY: help demo test check format types layers fuzz properties mutation bench e2e robustness ui docs kubernetes packages image generate chart \
	proto lock clean

help: ## say what every verb does
	@printf 'Tessera: GPU sharing for Kubernetes. The first verb you use sets up %s, once.\n\n' '$(VENV)'
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## try everything without a cluster or a GPU (ARGS=--once ends after the story)
	@$(BIN)/tessera demo $(ARGS)

test: $(READY) ## run the tests on all cores, and check the branch coverage of each package (COVERAGE= without)
	$(call heading,tests)
	@$(BIN)/python -m pytest $(PARALLEL) $(TESTED) $(if $(COVERAGE),--cov-branch --cov-report=) \
		$(foreach package,$(COVERAGE),--cov=tessera.$(firstword $(subst =, ,$(package))))
ifneq ($(COVERAGE),)
	$(call heading,branch coverage)
	@printf '%s\n' $(COVERAGE) | xargs -n 1 -P 4 sh -c ' \
		report="$(BIN)/coverage report --include=src/tessera/$${0%=*}/*"; least=$${0#*=}; status=0; \
		total=$$($$report --format=total --precision=1 --fail-under=$$least) || { status=1; $$report --skip-covered; }; \
		printf "%-10s %5s %% (at least %s %%)\n" "$${0%=*}" "$${total%%[!0-9.]*}" "$$least"; exit $$status'
endif

properties: $(READY) ## look for new counterexamples, for hours (PROPERTIES=tests/property/wire for a part)
	@HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest $(PARALLEL) $(PROPERTIES)

check: $(READY) ## what a commit must pass: format, lint, generated lists, types, layers, and a short fuzzing
	$(call heading,format)
	@$(BIN)/ruff format --check .
	$(call heading,lint)
	@$(BIN)/ruff check .
	$(call heading,generated lists)
	@$(BIN)/python -m tools.generate --check
	@$(MAKE) --jobs=2 types fuzz layers FUZZ_SEED=1

types: $(READY)
	$(call heading,types)
	@$(BIN)/mypy $(TYPED)

layers: $(READY)
	$(call heading,layers)
	@$(BIN)/lint-imports --no-logo

format: $(READY) ## rewrite the sources in the one format, and repair what the linter can repair
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

fuzz: $(FUZZ_READY) ## feed random bytes to every decoder and listener, FUZZ_SECONDS=2 or FUZZ_RUNS=1000000 each
	$(call heading,fuzz)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || { \
		echo "skipped: atheris, the fuzzer, has no build for this machine and Python"; exit 0; }; \
	for target in $(sort $(wildcard tests/fuzz/fuzz_*.py)); do \
		name=$$(basename $$target .py); seeds=tests/fuzz/corpus/$$name; mkdir -p .fuzz/$$name; \
		[ -d $$seeds ] || seeds=; \
		printf '%s, $(FUZZ_END) ... ' $$name; \
		if PYTHONPATH=. $(BIN)/python $$target $(FUZZ_END) -rss_limit_mb=2048 -timeout=10 -print_final_stats=1 \
			-artifact_prefix=.fuzz/$$name- .fuzz/$$name $$seeds >.fuzz/$$name.log 2>&1; \
		then sed -n 's/^stat::number_of_executed_units: */inputs without an uncaught exception: /p' .fuzz/$$name.log; \
		else echo failed; tail -n 60 .fuzz/$$name.log; exit 1; fi; \
	done

mutation: $(READY) ## change one thing at a time in what keeps promises; fails if tests miss it (MODULES=core/ledger, ARGS='--sample 50')
	@$(BIN)/python -m tools.mutation $(MODULES) $(ARGS)

bench: $(READY) ## measure the decision core and the running scheduler; fails when a budget is broken (about eight minutes)
	@$(BIN)/python -m bench.core --check
	@$(BIN)/python -m bench.preemption --check
	@$(BIN)/python -m bench.defrag --check
	@$(BIN)/python -m bench.metrics
	@$(BIN)/python -m bench.journal --check
	@$(BIN)/python -m bench.handover --check
	@$(BIN)/python -m bench.allocate --check
	@$(BIN)/python -m bench.exchange --check
	@$(BIN)/python -m bench.filter --check
	@$(BIN)/python -m bench.packing --check
	@$(BIN)/python -m bench.dashboard --check
	@$(BIN)/python -m bench.webhook --check
	@$(BIN)/python -m bench.hostile --check
	@$(BIN)/python -m bench.selector_costs --seconds 30 --check
	@$(BIN)/python -m bench.flood --check
	@$(BIN)/python -m bench.page --check

e2e: $(READY) ## run the product on a real Kubernetes, built once where Go is here; with a kubelet where the machine allows it
	@$(BIN)/python tools/kubernetes/build.py || echo "what needs these programs is skipped"
	@told=$$(mktemp); $(BIN)/python -m pytest $(E2E_BESIDE) -q -rsx >$$told 2>&1 & beside=$$!; \
	trap 'kill $$beside; rm -f $$told' INT TERM; \
	status=0; $(BIN)/python -m pytest tests/e2e -q -rsx $(addprefix --ignore=,$(E2E_BESIDE)) || status=1; \
	wait $$beside || status=1; cat $$told; rm -f $$told; exit $$status

robustness: $(READY) ## break a real cluster for three minutes and judge its history (ROBUSTNESS_S=3600, ROBUSTNESS_SEED=1)
	@ROBUSTNESS_S=$(ROBUSTNESS_S) ROBUSTNESS_SEED=$(ROBUSTNESS_SEED) $(BIN)/python -m tests.robustness

ui: ## test the dashboard's page in Chromium (PICTURES=docs/images takes the pictures of the docs as well)
ifeq ($(CHROMIUM),)
	@echo "skipped: the page is tested in Chromium, which is not here; \`make packages\` installs it (root and apt)," \
		"CHROMIUM=/path/to/chromium names another"
else
	@$(MAKE) $(UI_READY)
	$(call heading,the page in $(CHROMIUM))
	@CHROMIUM=$(CHROMIUM) PICTURES=$(abspath $(PICTURES)) $(BIN)/python -m pytest $(PARALLEL) tests/ui -rs
endif

docs: $(DOCS_READY) ## make the documentation's site, build/docs/index.html; fails if a link leads nowhere
	$(call heading,build/docs/index.html)
	@$(BIN)/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going --doctree-dir build/doctrees docs build/docs

kubernetes: $(READY) ## find that control plane, or build it into ~/.cache/tessera (minutes, once)
	@$(BIN)/python tools/kubernetes/build.py

packages: ## install what `make e2e` and `make ui` take from Debian or Ubuntu, where you are root
	@missing=; for name in $(NODE_PACKAGES) $(UI_PACKAGES); do \
		[ "$$(dpkg-query --show --showformat '$${db:Status-Status}' $$name 2>/dev/null)" = installed ] || \
			missing="$$missing $$name"; \
	done; \
	if ! command -v apt-get >/dev/null; then echo "nothing installed: there is no apt here"; \
	elif [ -z "$$missing" ]; then echo "installed already: $(NODE_PACKAGES) $(UI_PACKAGES)"; \
	elif [ "$$(id -u)" != 0 ]; then echo "nothing installed: as root, apt-get install$$missing"; \
	else export DEBIAN_FRONTEND=noninteractive; \
		install="apt-get install --yes --quiet --no-install-recommends$$missing"; \
		$$install || { apt-get update --quiet && $$install; } || \
			echo "not installed:$$missing; what needs them is skipped, and says so"; \
	fi

image: $(READY) ## build the OCI image build/tessera-image.tar without a container engine, on Debian or Ubuntu (IMAGE=NAME:TAG)
	@$(BIN)/python -m tools.image $(if $(IMAGE),--name=$(IMAGE))

generate: $(READY) ## write the lists of policies, vendors, resources, flags and metrics in the chart and the docs from the code
	@$(BIN)/python -m tools.generate

chart: $(READY) ## check the Helm chart on several versions of Kubernetes, and render deploy/ from it
	@$(BIN)/python -m tools.chart

proto: $(READY) ## make the messages of kubelet's interfaces again, after a change of a .proto file
	@$(BIN)/python tools/protos.py

lock: $(READY) ## resolve the dependencies again, with uv, into requirements/
	@$(PIP) uv==$(UV_VERSION)
	@$(COMPILE) pyproject.toml --group dev --output-file requirements/dev.txt
	@$(COMPILE) --group fuzz --output-file requirements/fuzz.txt
	@$(COMPILE) --group ui --constraint requirements/dev.txt --output-file requirements/ui.txt
	@$(COMPILE) --group docs --constraint requirements/dev.txt --output-file requirements/docs.txt
	@$(COMPILE) --group plugin --constraint requirements/dev.txt --output-file requirements/plugin.txt
	@$(COMPILE) pyproject.toml --constraint requirements/dev.txt --output-file requirements/runtime.txt
	@echo hatchling | $(COMPILE) - --constraint requirements/dev.txt --output-file requirements/build.txt

clean: ## remove everything that these verbs made
	rm -rf $(VENV) .venv-3.* .coverage .fuzz .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A new environment each time the dependencies change, so that nothing of an older lock stays behind.
$(READY): pyproject.toml requirements/dev.txt
	@[ -n "$(PYTHON)" ] || { echo "make: no Python 3.11 or later found; name one with PYTHON=/path/to/python"; exit 1; }
	@echo "==> $(VENV): a fresh environment with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv --clear $(VENV) || { \
		echo "make: Python's venv module does not work here; on Debian and Ubuntu: apt install python3-venv"; exit 1; }
	@echo "==> $(VENV): $$(grep -c == requirements/dev.txt) locked packages (about 15 seconds)"
	@awk -v folder=$(VENV) '/^[^ #]/ { part = count++ % $(PARTS) } { print > (folder "/part-" part ".txt") }' requirements/dev.txt
	@ls $(VENV)/part-*.txt | xargs -n 1 -P $(PARTS) $(PIP) --no-deps --require-hashes --requirement
	@rm $(VENV)/part-*.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(FUZZ_READY): $(READY) requirements/fuzz.txt
	@echo "==> $(VENV): the fuzzer"
	@$(PIP) --no-deps --require-hashes --requirement requirements/fuzz.txt
	@touch $@

$(UI_READY): $(READY) requirements/ui.txt
	@echo "==> $(VENV): what drives a browser"
	@$(PIP) --no-deps --require-hashes --requirement requirements/ui.txt
	@touch $@

$(DOCS_READY): $(READY) requirements/docs.txt
	@echo "==> $(VENV): what makes the site of the documentation"
	@$(PIP) --no-deps --require-hashes --requirement requirements/docs.txt
	@touch $@
