# Shortcuts. The real work is in CMakeLists.txt and scripts/.
PRESET ?= release
BUILD := $(if $(filter release,$(PRESET)),build,build-$(PRESET))
JOBS ?= $(shell nproc)
# Ninja prints [steps done/all steps, seconds so far].
export NINJA_STATUS = [%f/%t %es] 
patiently = scripts/patiently
configured = grep -qs '^TRIREME_TESTS:BOOL=ON' $(BUILD)/CMakeCache.txt

.PHONY: help setup build train examples test bench soak format asan tsan clean

help:  ## list these commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

setup:  ## install what is missing for the build and the tests (idempotent)
	@scripts/setup test

build: setup  ## build the library, the programs and the tests into build/bin
	@$(configured) || $(patiently) configure cmake --preset $(PRESET) -DCMAKE_MAKE_PROGRAM=ninja -DTRIREME_TESTS=ON
	@$(patiently) build cmake --build --preset $(PRESET) -j $(JOBS)

train:  ## train a small GPT on two ranks and see it learn (about a minute); builds only what that needs
	@scripts/setup train
	@test -f $(BUILD)/build.ninja || \
	  $(patiently) configure cmake --preset $(PRESET) -DCMAKE_MAKE_PROGRAM=ninja -DTRIREME_TESTS=OFF
	@$(patiently) build cmake --build --preset $(PRESET) -j $(JOBS) --target trireme trireme-rank
	@$(BUILD)/bin/trireme train configs/gpt-small.toml

examples:  ## build only the programs of examples/ (build/bin/01_hello_ranks ...)
	@scripts/setup train
	@test -f $(BUILD)/build.ninja || \
	  $(patiently) configure cmake --preset $(PRESET) -DCMAKE_MAKE_PROGRAM=ninja -DTRIREME_TESTS=OFF
	@$(patiently) build cmake --build --preset $(PRESET) -j $(JOBS) --target trireme examples

test: build  ## run every test that this machine can run
	@$(patiently) test ctest --test-dir $(BUILD) -j 4 --output-on-failure --no-tests=error

bench:  ## time collectives, training, cut layers, long sequences, experts, sharded state, pipelines, images, tokenizers, import, export and generation against their peers, interleaved
	@scripts/setup bench
	@test -x $(BUILD)/bin/against_mpi || rm -f $(BUILD)/CMakeCache.txt
	@$(MAKE) --no-print-directory build
	@bench/run
	@bench/train
	@bench/tensor
	@bench/context
	@bench/experts
	@bench/shard
	@bench/pipe
	@bench/images
	@bench/tokenize
	@bench/exchange
	@bench/generate

soak: build  ## the long proofs: theorems as a table, methods beside lockstep, a mixture beside its dense twin, tokenizers on a million strings for each family, the parameter server under twice 50 kills and in 100,000 worlds (2 hours on two cores; each says how long it took)
	@$(patiently) convergence bench/convergence
	@$(patiently) methods bench/methods
	@$(patiently) talk bench/talk
	@$(patiently) mixture bench/mixture
	@TRIREME_PS_KILLS=47 $(patiently) kills $(BUILD)/bin/ps_process_test --gtest_filter='*AnyOfThemMayBeKilled'
	@TRIREME_TRAIN_KILLS=50 $(patiently) training-kills $(BUILD)/bin/worker_test --gtest_filter='ServedForLong.Killed*'
	@mkdir -p runs/tokenizers
	@$(patiently) tokenizers .venv/bin/python3 tests/e2e/hf_tokenizers.py $(BUILD)/bin/tokenize_texts runs/tokenizers 30000000 1000000
	@PS_FIRST=1001 PS_SEEDS=100000 $(patiently) worlds $(BUILD)/bin/ps_test --gtest_filter='*KeepsItsPromises*'

format:  ## clang-format the tree
	@git ls-files '*.h' '*.cpp' '*.cu' | xargs clang-format -i

asan:  ## build and test under AddressSanitizer and UBSan, except the suites that mostly run libtorch
	@$(MAKE) --no-print-directory build PRESET=asan
	@$(patiently) asan ctest --test-dir build-asan -j 4 -E '^(exact|train)_test$$' --output-on-failure --no-tests=error

tsan: build  ## run the ThreadSanitizer tests of net and comm, which are built without libtorch
	@$(patiently) tsan ctest --test-dir $(BUILD) -L tsan --output-on-failure --no-tests=error

clean:  ## remove the build folders
	@rm -rf build build-dev build-asan
