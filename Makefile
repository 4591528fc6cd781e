# The short commands. Everything real is in CMakeLists.txt and scripts/.
PRESET ?= release
BUILD := $(if $(filter release,$(PRESET)),build,build-$(PRESET))
JOBS ?= $(shell nproc)

.PHONY: help setup configure build train test bench format asan tsan clean

help:  ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup:  ## install what is missing (idempotent)
	@scripts/setup

configure: setup
	@test -f $(BUILD)/build.ninja || cmake --preset $(PRESET) -DCMAKE_MAKE_PROGRAM=ninja

build: configure  ## build the library, the programs and the tests into build/bin
	@cmake --build --preset $(PRESET) -j $(JOBS)

train: configure  ## train a small GPT on two ranks and see it learn (about a minute)
	@cmake --build --preset $(PRESET) -j $(JOBS) --target trireme trireme-rank
	@$(BUILD)/bin/trireme train configs/gpt-small.toml

test: build  ## run every test that this machine can run
	@ctest --test-dir $(BUILD) --output-on-failure --no-tests=error

bench: build  ## time collectives, training, cut layers and sharded state against their peers, interleaved
	@bench/run
	@bench/train
	@bench/tensor
	@bench/shard

format:  ## clang-format the tree
	@git ls-files '*.h' '*.cpp' | xargs clang-format -i

asan:  ## build and test under AddressSanitizer and UBSan
	@$(MAKE) test PRESET=asan

tsan:  ## build and run the ThreadSanitizer tests
	@$(MAKE) build PRESET=tsan && ctest --test-dir build-tsan -L tsan --output-on-failure --no-tests=error

clean:  ## remove the build folders
	@rm -rf build build-dev build-asan build-tsan
