# make demo | test | fast | format | tidy | fuzz | nightly | asan | tsan | build | dist | deb | wheel | image: each target installs what is missing, builds and runs on its own.
SHELL := /bin/bash
.DEFAULT_GOAL := build
PRESET ?= release
BUILD := build$(if $(filter-out release,$(PRESET)),-$(PRESET))
ENV := eval "$$(cmake/setup.sh --env)"
JOBS ?= $(shell nproc)

.PHONY: setup build test fast format tidy demo dist deb wheel image asan tsan fuzz nightly clean help
help:
	@sed -n '1p' Makefile

setup:
	@cmake/setup.sh $(if $(filter aarch64,$(PRESET)),--aarch64)

$(BUILD)/build.ninja: | setup
	@$(ENV) && cmake --preset $(PRESET)

build: setup $(BUILD)/build.ninja
	@$(ENV) && cmake --build $(BUILD) -j $(JOBS)

# Fixes the seed of the mutations, so that every change is tested with the same mutations. `make fuzz` and the nightly
# run draw a fresh seed.
test: export FUZZ_SEED := $(or $(FUZZ_SEED),1)
test: export FUZZ_INPUTS := $(or $(FUZZ_INPUTS),100000)
test: build fuzz
	@$(ENV) && ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) --no-tests=error

fast: build
	@$(ENV) && ctest --test-dir $(BUILD) --output-on-failure -L fast -j $(JOBS) --no-tests=error

# Formats C++ and Python in the way that tests/architecture/format_test.py (one of the fast tests) requires.
format: setup
	@$(ENV) && "$$SPECDEC_PYTHON" tests/architecture/format_test.py --apply

# Runs clang-tidy with the short list of .clang-tidy. SINCE=COMMIT checks only what differs from COMMIT. Needs Debian's clang-tidy-19.
tidy: setup
	@$(ENV) && cmake --preset dev > /dev/null && JOBS=$(JOBS) "$$SPECDEC_PYTHON" tests/tidy.py $(if $(SINCE),--since $(SINCE))

demo: build
	@$(ENV) && $(BUILD)/bin/specdec demo

# Makes the relocatable tree: binaries, the small shared libraries that they need, licences, and the tests for a machine
# with a GPU (share/specdec/gpu/run.py). To run, it needs only a Python venv with torch.
dist: build
	@$(ENV) && rm -rf dist && cmake --install $(BUILD) --prefix dist/specdec --strip && \
	  cmake --install $(BUILD) --prefix dist/specdec --strip --component gpu

# Makes dist/specdec_VERSION-1_ARCHITECTURE.deb.
deb: build
	@rm -f $(BUILD)/deb/*.deb dist/*.deb
	@$(ENV) && cd $(BUILD) && cpack -G DEB -B deb > deb.log || { cat deb.log; exit 1; }
	@mkdir -p dist && cp $(BUILD)/deb/*.deb dist/

# Makes the wheels specdec_core and specdec in dist; PRESET=aarch64 makes specdec_core for 64-bit ARM.
wheel: build
	@$(ENV) && "$$SPECDEC_PACKAGING_PYTHON" cmake/wheel.py $(BUILD) dist

# Makes the container image specdec:VERSION; DEVICE=cuda makes specdec:VERSION-cuda.
image:
	docker build --tag specdec:$$(cat VERSION)$(if $(DEVICE),-$(DEVICE)) --build-arg DEVICE=$(or $(DEVICE),cpu) .

asan tsan:
	@$(MAKE) --no-print-directory fast PRESET=$@

# Runs tests/fuzz/run.py: FUZZ_INPUTS inputs per target (200,000), a fresh FUZZ_SEED, and a corpus that is kept in FUZZ_CORPUS.
fuzz:
	@$(MAKE) --no-print-directory build PRESET=fuzz
	@$(ENV) && JOBS=$(JOBS) "$$SPECDEC_PYTHON" tests/fuzz/run.py build-fuzz

# Runs tests/nightly.py: sanitizers, the long soak, all fault points, fuzzing with 1e7 inputs per target. PARTS="asan fuzz" runs only these.
nightly: build
	@$(ENV) && JOBS=$(JOBS) "$$SPECDEC_PYTHON" tests/nightly.py $(PARTS)

clean:
	rm -rf build build-* dist
