# make demo | test | fast | format | tidy | fuzz | nightly | asan | tsan | build | dist | gpu-pack | deb | wheel | image: each target installs what is missing, builds and runs on its own.
SHELL := /bin/bash
.DEFAULT_GOAL := build
PRESET ?= release
BUILD := build$(if $(filter-out release,$(PRESET)),-$(PRESET))
ENV := eval "$$(cmake/setup.sh --env)"
JOBS ?= $(shell nproc)

.PHONY: setup build everything test fast format tidy demo story released dist gpu-pack deb wheel image asan tsan fuzz nightly clean help
help:
	@sed -n '1p' Makefile

setup:
	@cmake/setup.sh $(if $(filter aarch64,$(PRESET)),--aarch64)

$(BUILD)/build.ninja: | setup
	@$(ENV) && cmake --preset $(PRESET)

# Builds the program, without tests.
build: setup $(BUILD)/build.ninja
	@$(ENV) && cmake --build $(BUILD) -j $(JOBS) --target program

everything: setup $(BUILD)/build.ninja
	@$(ENV) && cmake --build $(BUILD) -j $(JOBS)

# Fixes the seed of the mutations, so that every change is tested with the same mutations. `make fuzz` and the nightly
# run draw a fresh seed.
test: export FUZZ_SEED := $(or $(FUZZ_SEED),1)
test: export FUZZ_INPUTS := $(or $(FUZZ_INPUTS),100000)
test: everything fuzz
	@$(ENV) && ctest --test-dir $(BUILD) --output-on-failure -j $(JOBS) --no-tests=error

fast: everything
	@$(ENV) && ctest --test-dir $(BUILD) --output-on-failure -L fast -j $(JOBS) --no-tests=error

# Formats C++ and Python in the way that tests/architecture/format_test.py (one of the fast tests) requires.
format: setup
	@$(ENV) && "$$SPECDEC_PYTHON" tests/architecture/format_test.py --apply

# Runs clang-tidy with the short list of .clang-tidy. SINCE=COMMIT checks only what differs from COMMIT. Needs Debian's clang-tidy-19.
tidy: setup
	@$(ENV) && cmake --preset dev > /dev/null && JOBS=$(JOBS) "$$SPECDEC_PYTHON" tests/tidy.py $(if $(SINCE),--since $(SINCE))

# Builds what the demo runs, and nothing else.
demo: setup $(BUILD)/build.ninja
	@$(ENV) && cmake --build $(BUILD) -j $(JOBS) --target specdec && $(BUILD)/bin/specdec demo

# Tells the story of a draft on an LLM that others made, SmolLM2-135M-Instruct, in about half an hour on two cores. Without
# network it ends with a line that says so.
story: build
	@$(ENV) && model=$$("$$SPECDEC_PYTHON" tests/bench/smollm2.py) || { code=$$?; [ $$code = 77 ] && exit 0 || exit $$code; } && \
	  $(BUILD)/bin/specdec demo --model "$$model" --out specdec-demo-story

# Released files contain kernels for all supported GPUs, so they are built in a folder of their own (ccache shares the
# rest).
RELEASE := $(if $(filter release,$(PRESET)),dist,$(PRESET))
released: setup
	@$(ENV) && cmake --preset $(RELEASE) > /dev/null && cmake --build build-$(RELEASE) -j $(JOBS) --target program

# Makes the relocatable tree: binaries, the small shared libraries that they need, licences, and the tests for a machine
# with a GPU (share/specdec/gpu/run.py). To run, it needs only a Python venv with torch.
dist: released
	@$(ENV) && rm -rf dist && cmake --install build-$(RELEASE) --prefix dist/specdec --strip
	@$(if $(filter dist,$(RELEASE)),$(ENV) && cmake --build build-dist -j $(JOBS) --target gpu_test && \
	  cmake --install build-dist --prefix dist/specdec --strip --component gpu && \
	  "$$SPECDEC_PYTHON" tests/kernels/resources_test.py build-dist/libexec/libspecdec_cuda.so 80 90 100)

# Makes dist/specdec-gpu.tar.xz, small enough to be carried to a borrowed machine with a GPU (docs/install.md): the part
# of dist/specdec that is needed to run, a pair of models and their data.
gpu-pack: dist
	@$(ENV) && "$$SPECDEC_PYTHON" cmake/gpu_pack.py dist/specdec build-dist/gpu-pair dist/specdec-gpu.tar.xz

# Makes dist/specdec_VERSION-1_ARCHITECTURE.deb.
deb: released
	@rm -f build-$(RELEASE)/deb/*.deb dist/*.deb
	@$(ENV) && cd build-$(RELEASE) && cpack -G DEB -B deb > deb.log || { cat deb.log; exit 1; }
	@mkdir -p dist && cp build-$(RELEASE)/deb/*.deb dist/

# Makes the wheels specdec_core and specdec in dist; PRESET=aarch64 makes specdec_core for 64-bit ARM.
wheel: released
	@$(ENV) && "$$SPECDEC_PACKAGING_PYTHON" cmake/wheel.py build-$(RELEASE) dist

# Makes the container image specdec:VERSION; DEVICE=cuda makes specdec:VERSION-cuda.
image:
	docker build --tag specdec:$$(cat VERSION)$(if $(DEVICE),-$(DEVICE)) --build-arg DEVICE=$(or $(DEVICE),cpu) .

asan tsan:
	@$(MAKE) --no-print-directory fast PRESET=$@

# Runs tests/fuzz/run.py: FUZZ_INPUTS inputs per target (200,000), a fresh FUZZ_SEED, and a corpus that is kept in FUZZ_CORPUS.
fuzz:
	@$(MAKE) --no-print-directory everything PRESET=fuzz
	@$(ENV) && JOBS=$(JOBS) "$$SPECDEC_PYTHON" tests/fuzz/run.py build-fuzz

# Runs tests/nightly.py: sanitizers, the long soak, all fault points, fuzzing with 1e7 inputs per target. PARTS="asan fuzz" runs only these.
nightly: everything
	@$(ENV) && JOBS=$(JOBS) "$$SPECDEC_PYTHON" tests/nightly.py $(PARTS)

clean:
	rm -rf build build-* dist
