# The ways in. Each target is a thin wrapper over the CMake presets and scripts/; `make help` lists them.
# A fresh Debian 12 needs git, make and root: scripts/setup.sh installs the rest, and says what and why.

JOBS ?= $(shell nproc 2>/dev/null || echo 2)
MAKEFLAGS += --no-print-directory
.DEFAULT_TASK := help
.PHONY: help setup build demo test test-asan test-tsan test-long fuzz bench bench-catalogue bench-workers bench-gpu format package vendor clean

help:            ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 20

demo:            ## tune real shapes on this machine's CPU, from the shapes file to a validated table
	@scripts/demo.sh

test:            ## install what is missing, build, run every test but the long ones
	@scripts/test.sh dev

test-asan:       ## the same under AddressSanitizer and UndefinedBehaviorSanitizer
	@scripts/test.sh asan

test-tsan:       ## the unit tests under ThreadSanitizer
	@scripts/test.sh tsan

test-long:       ## the tests that take minutes, and the fuzzers for an hour in all
	@scripts/test.sh dev long
	@scripts/fuzz.sh 450

fuzz:            ## every fuzzer for half a minute, and the lines that its saved inputs reach
	@scripts/fuzz.sh

bench:           ## the figures, one a line: name value unit
	@scripts/bench.sh

bench-catalogue: ## every untuned table of AITER through 256 simulated workers, from submission to table
	@scripts/bench.sh catalogue

bench-workers:   ## the same farm with 1,024 simulated workers, each a connection of its own, for three tables
	@scripts/bench.sh workers

bench-gpu:       ## tune the shapes of examples/h200.csv on a GPU: ARGS="--shape mixtral"; --help lists the rest
	@scripts/build.sh dev >&2 && scripts/bench_gpu.sh $(ARGS)

build: setup     ## build everything into build/dev
	@cmake --preset dev >/dev/null && cmake --build --preset dev -j$(JOBS)

package:         ## the Debian packages of server, worker and command line, into build/packages
	@scripts/package.sh

setup:           ## install the packages that a build and its tests need
	@scripts/setup.sh

format:          ## clang-format all sources in place
	@scripts/check_style.sh --fix

vendor:          ## fetch the page's charting library again, at the version of scripts/vendor.sh
	@scripts/vendor.sh

clean:           ## remove build/
	@rm -rf build
