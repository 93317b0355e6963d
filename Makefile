# Two commands do everything on a machine with Rust, Python >= 3.11 and make: `make demo` and `make test`.
# They create and use .venv; nothing else is assumed to be installed.

PYTHON ?= python3
BIN := .venv/bin
WHEEL := build/wheel-venv/bin
STAMPS := build/stamps
RUST := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)

.DEFAULT_GOAL := help
.PHONY: help test quick check demo bench accuracy audit mutants serve spark docs wheel clean

help: ## List the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

# Each stamp is remade only when what it depends on has changed, so a second run starts at once.
$(STAMPS)/venv: pyproject.toml
	@mkdir -p $(STAMPS)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1' maturin
	$(BIN)/python -m pip install --quiet --group check
	@touch $@

$(STAMPS)/build: $(STAMPS)/venv $(RUST)
	$(BIN)/python -m pip install --quiet --editable '.[all]'
	@touch $@

$(STAMPS)/%: $(STAMPS)/venv
	$(BIN)/python -m pip install --quiet --group $*
	@touch $@

# Without root or apt there may be no PostgreSQL and no Java: their tests are then skipped, but never in continuous integration.
test: $(STAMPS)/build ## Set up, build, run every test of both languages
	cargo test --quiet --workspace --exclude optstream-py
	@tools/java > /dev/null || test $$? = 77
	@url=$$(tools/postgres start) || { code=$$?; test $$code = 77 || exit $$code; }; \
	OPTSTREAM_TEST_POSTGRES=$$url $(BIN)/python -m pytest --quiet --numprocesses 2 --dist worksteal

quick: $(STAMPS)/build ## Run the unit tests of both languages: no statistics, no servers
	cargo test --quiet --workspace --exclude optstream-py
	$(BIN)/python -m pytest --quiet --numprocesses 2 -m 'not slow' tests/unit

check: $(STAMPS)/build ## Lint and type checks of both languages, then every test
	cargo fmt --all --check
	cargo clippy --quiet --workspace --all-targets -- -D warnings
	@$(MAKE) --no-print-directory docs
	$(BIN)/ruff format --check --quiet .
	$(BIN)/ruff check --quiet .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/zizmor --offline --quiet --no-progress --min-severity medium .github/workflows
	$(BIN)/python -m mypy.stubtest optstream._core
	@$(MAKE) --no-print-directory test

demo: $(STAMPS)/build $(STAMPS)/demo ## Release a synthetic stream; write series, statement and plot to build/demo
	$(BIN)/python tools/demo.py

bench: $(STAMPS)/build $(STAMPS)/bench ## Measure speed beside numpy, OpenDP, diffprivlib and cvxpy
	cargo bench --quiet --package optstream-core
	$(BIN)/python tools/bench.py
	$(BIN)/python tools/bench_release.py
	$(BIN)/python tools/bench_hierarchy.py
	$(BIN)/python tools/bench_ledger.py
	$(BIN)/python tools/bench_events.py
	$(BIN)/python tools/bench_service.py
	$(BIN)/python tools/bench_estimate.py

# The streams are not part of the project: DATA names the folder that has them.
DATA ?= ../shared/data
DELTA_STREAMS := rte_regional_load_2016/auvergne nyc_taxi
accuracy: $(STAMPS)/build ## Measure errors beside the plain Laplace mechanism on the streams of DATA; write build/accuracy
	$(BIN)/python tools/accuracy.py --made
	$(BIN)/python tools/accuracy.py --data $(DATA)
	$(BIN)/python tools/accuracy.py --data $(DATA) --delta 1e-6 --streams $(DELTA_STREAMS) -o build/accuracy/delta
	$(BIN)/python tools/accuracy.py --data $(DATA) --delta 1e-6 --streams $(DELTA_STREAMS) --w 336 -o build/accuracy/week

audit: $(STAMPS)/build ## Attack all that ships and all that is known to be broken; measure what time tells
	$(BIN)/python tools/audit.py
	$(BIN)/python tools/timing.py

mutants: $(STAMPS)/build $(STAMPS)/mutants ## Change what prices, charges and reads data; see whether a test notices (hours)
	$(BIN)/python tools/mutants.py
	cargo mutants --version > /dev/null || cargo install --locked cargo-mutants
	$(BIN)/python tools/mutants.py --rust

serve: $(STAMPS)/build ## Serve a stream on 127.0.0.1:8000 for trying things out; its files are in build/service
	tools/serve

# LEDGER=postgresql://... keeps the ledger of the trips in a database of its own; else a file does.
spark: $(STAMPS)/build ## Release trips by zone in Spark into build/spark
	tools/java > /dev/null
	PYTHON=$(CURDIR)/$(BIN)/python examples/spark/run $(CURDIR)/build/spark

docs: $(STAMPS)/build ## Build the site into build/site and the documentation of the Rust crates into target/doc
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --no-deps --document-private-items --package optstream-core --package optstream-post --package optstream-release --package optstream-estimate
	rm -rf build/site
	$(BIN)/python -m zensical build --clean --strict --config-file zensical.toml

# What is published needs maturin and zig, and none of the tools that check.
$(STAMPS)/wheel: pyproject.toml
	@mkdir -p $(STAMPS)
	test -x $(WHEEL)/python || $(PYTHON) -m venv build/wheel-venv
	$(WHEEL)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(WHEEL)/python -m pip install --quiet --group wheel
	@touch $@

wheel: $(STAMPS)/wheel ## Build a source distribution and wheels for manylinux2014 into build/wheel
	BIN=$(WHEEL) tools/wheels build/wheel

clean: ## Remove everything that make has made
	-tools/postgres stop
	rm -rf build target .venv .cache
