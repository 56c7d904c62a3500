# Entry points: thin wrappers over the CMake presets and scripts/. `make help` lists them.
# A fresh Debian 12 needs git, make and root; scripts/setup.sh installs the rest and prints why.

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
MAKEFLAGS += --no-print-directory
.PHONY: help setup build demo test test-asan test-tsan test-long fuzz bench bench-catalogue bench-workers \
    bench-gpu census format package wheel vendor clean

help:            ## list the targets
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo:            ## tune real shapes on this machine's CPU, from a shapes file to a validated table
	@scripts/demo.sh

test:            ## install missing packages, build, run all but the long tests
	@scripts/test.sh dev

test-asan:       ## run unit and farm tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/test.sh asan

test-tsan:       ## run the unit tests under ThreadSanitizer
	@scripts/test.sh tsan

test-long:       ## run the long tests, then each fuzzer for 450 s
	@scripts/test.sh dev long
	@scripts/fuzz.sh 450

fuzz:            ## run each fuzzer for 30 s and print the coverage of its saved inputs
	@scripts/fuzz.sh

bench:           ## print performance figures, one per line: name value unit
	@scripts/bench.sh

bench-catalogue: ## tune every untuned table of AITER with 256 simulated workers
	@scripts/bench.sh catalogue

bench-workers:   ## tune three tables with 1,024 simulated workers, one connection each
	@scripts/bench.sh workers

bench-gpu:       ## tune the shapes of examples/h200.csv and formats.csv on a GPU, or ARGS="--shape mixtral"
	@scripts/build.sh dev >&2 && scripts/bench_gpu.sh $(ARGS)
	@[ -n "$(ARGS)" ] || scripts/bench_gpu.sh --shapes examples/formats.csv --state build/bench-gpu-formats

build: setup     ## build everything into build/dev; the last line names what the build leaves out
	@cmake --preset dev >/dev/null && cmake --build --preset dev -j$(JOBS)
	@cat build/dev/left_out.txt

package:         ## build the Debian packages into build/packages
	@scripts/package.sh

wheel:           ## build the Python wheel into build/wheel and print its size
	@scripts/setup.sh && scripts/build.sh release programs >&2 && scripts/wheel.py build/release build/wheel

setup:           ## install the packages that building and testing need
	@scripts/setup.sh

census:          ## count files per folder, lines, function lengths, long lines and include circles
	@scripts/census.sh

format:          ## clang-format all sources in place
	@scripts/check_style.sh --fix

vendor:          ## fetch the page's charting library again, at the version in scripts/vendor.sh
	@scripts/vendor.sh

clean:           ## remove build/
	@rm -rf build
