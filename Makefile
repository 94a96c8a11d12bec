# Each command is enough alone: it makes .venv and installs what it needs. Say `make` for the list.

PYTHON ?= python3
DEMO_ARGS ?=
BENCH_ARGS ?=
PYTEST_ARGS ?=
MUTANTS_ARGS ?=
DOCS_PORT ?= 8000

# The repository's address, for distributions that are to be published: REPOSITORY=https://example.org/owner/treefold
REPOSITORY ?=

PYTHONS ?= $(PYTHON)
COMPILERS ?= g++,none

VENV := .venv
CORE := .venv-core
DOCS := .venv-docs
RECIPES := .venv-recipes
BIN_NAME := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
BIN = $(VENV)/$(BIN_NAME)
PIP = $(BIN)/python -m pip --disable-pip-version-check
# Twice quiet: errors only, not the warnings of whatever package index is configured.
CONSTRAINTS := constraints.txt
INSTALL = $(PIP) install -qq --constraint $(CONSTRAINTS)
# A build that fails is to fail here, and not to give a treefold without its native core.
NATIVE := --config-setting wheel.cmake=true
INSTALL_INPUTS := pyproject.toml $(wildcard constraints*.txt) CMakeLists.txt $(wildcard native/*.cpp native/*.hpp native/group/*)
NATIVE_FILES := $(wildcard $(addprefix native/,*.cpp *.hpp group/*.cpp group/*.hpp tests/*.cpp tests/*.hpp))
# Every header is to be read alone, as an editor reads it.
INCLUDES := 'import nanobind, numpy, sysconfig; \
  print(*("-I" + path for path in (nanobind.include_dir(), numpy.get_include(), sysconfig.get_path("include"))))'
# The folders that need NumPy only, but for the files in them that need SciPy or PyTorch, or take long.
CORE_TESTS := tests/api tests/execution tests/files tests/packing tests/plan tests/planners/test_one_pass.py \
  tests/planners/test_planners.py tests/properties tests/topology \
  $(addprefix --ignore=tests/,api/test_choose.py api/test_fast_path.py api/test_topology_argument.py execution/test_nccl.py \
  topology/test_fuzz_parsers.py topology/test_nvlinks.py topology/test_parsers_hwloc_xml.py)
# What distributions are built from: the checkout, or a copy in which the address stands.
BUILT := $(if $(REPOSITORY),build/addressed,.)
PREPARE = $(if $(REPOSITORY),$(BIN)/python tools/address.py $(REPOSITORY) $(BUILT),:)
SMOKE := build/smoke
SANITIZE := build/sanitize
SANITIZED_TESTS := tests/native tests/properties tests/api tests/partials/test_partial_sum.py
# On a GPU every access of a kernel is looked at, which takes long: batches, two dtypes, and what is settled afterwards.
SANITIZED_KERNELS := tests/cuda/test_fused.py -k "TestBatch or wide-float32 or wide-bfloat16 or (settled and SUM)"
# In an environment of the extra `docs` alone, so that the site never needs what another target has installed.
BUILD_DOCS := $(DOCS)/$(BIN_NAME)/python -m sphinx -q -E -W --keep-going -b html -d build/doctrees docs build/docs
# One pytest process on one core, at most four: every one of them loads TensorFlow.
WORKERS = $(shell $(BIN)/python -c 'import os; n = os.cpu_count() or 1; print(min(n, 4) if n > 1 else 0)')

.PHONY: help demo test test-core test-recipes test-long test-gpu docs docs-serve check check-code check-site check-wheel \
  mutants sanitize bench bench-gpu wheel wheels try-wheels clean
.DELETE_ON_ERROR:

help:
	@echo 'make demo        train on 1, 2, 3 ranks (if PyTorch is in .venv) with one SHA; then on 3 devices, of which the rule'
	@echo '                 of TensorFlow loses one (DEMO_ARGS="--ranks 1,2,3,5,8 --report demo.html")'
	@echo 'make test        run every test, counts kept small (PYTEST_ARGS="-k mean")'
	@echo 'make test-core   run the tests that need NumPy only, in .venv-core: quick to install and to run, for newcomers'
	@echo 'make test-recipes  run what pages say of Lightning, Accelerate, transformers, Flower and NVFlare, in .venv-recipes'
	@echo 'make test-long   run every test with the full counts: attacks, fuzzing, every fold; then with the other proofs of exact sums'
	@echo 'make test-gpu    run the tests that need a GPU (a CUDA build of PyTorch in .venv), under compute-sanitizer if it is here'
	@echo 'make docs        build the documentation into build/docs, any warning being an error'
	@echo 'make docs-serve  the same, and show it at http://localhost:8000 (DOCS_PORT=8001)'
	@echo 'make check       format, lint, types, layers, budgets, doctests, spelling, documentation, and the wheel in a fresh venv'
	@echo 'make mutants     change the code in 400 places, one at a time, and see whether tests notice (MUTANTS_ARGS="--seed 2")'
	@echo 'make sanitize    run the native core under sanitizers: threads on drivers of it, memory on the host tests'
	@echo 'make bench       measure against the memory limit and other libraries; writes benchmarks/results/<date>.md'
	@echo 'make bench-gpu   measure on a GPU, against its own copies; writes benchmarks/results/gpu-<date>.md'
	@echo 'make wheel       build the source archive and the wheel into dist/'
	@echo 'make wheels      build and test the wheels to publish, one per Python, into dist/ (on Linux with Docker)'
	@echo '                 (REPOSITORY=https://... for both: links of the README and URLs of the package lead there)'
	@echo 'make try-wheels  build a wheel per Python and compiler, each tried in an empty environment'
	@echo '                 (PYTHONS="python3.12 python3.13" COMPILERS=g++,clang++,none; none: without the native core)'
	@echo 'make clean       remove .venv, .venv-core, .venv-docs, .venv-recipes and everything built'
	@echo 'All take PYTHON=/path/to/python (3.11 or newer) the first time.'

demo: $(VENV)/.demo
	@$(BIN)/treefold demo $(DEMO_ARGS)

test: $(VENV)/.test
	@$(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS)

# No framework can be imported by accident: there is none in .venv-core.
test-core $(CORE)/.test-core: BIN := $(CORE)/$(BIN_NAME)
test-core: $(CORE)/.test-core
	@$(BIN)/python -m pytest -q -n $(WORKERS) $(CORE_TESTS) $(PYTEST_ARGS)

# Flower excludes versions that `make test` runs with.
test-recipes $(RECIPES)/.recipes: BIN := $(RECIPES)/$(BIN_NAME)
test-recipes $(RECIPES)/.recipes: CONSTRAINTS := constraints-recipes.txt
test-recipes: $(RECIPES)/.recipes
	@$(BIN)/python -m pytest -q tests/docs/recipes.py tests/examples/test_flower.py tests/examples/test_nvflare.py \
	  $(PYTEST_ARGS)

test-long: $(VENV)/.test
	@TREEFOLD_CASES=full $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS)
	@for certificate in integers none; do \
	  echo "test-long: sums proved exact by $$certificate"; \
	  TREEFOLD_CERTIFICATE=$$certificate $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS) || exit 1; \
	done

test-gpu: $(VENV)/.test
	@$(BIN)/python -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else \
	  "PyTorch in .venv sees no GPU. Install its CUDA build: .venv/bin/python -m pip install --upgrade torch")'
	@$(BIN)/python -m pytest -q -m gpu $(PYTEST_ARGS)
	@echo 'test-gpu: the kernels, compiled'
	@$(BIN)/python -m pytest -q tests/cuda
	@command -v compute-sanitizer > /dev/null || { \
	  echo 'test-gpu: compute-sanitizer (of the CUDA toolkit) is not on PATH: memcheck and racecheck were not run'; exit 0; }; \
	for tool in 'memcheck --report-api-errors no' racecheck; do \
	  echo "test-gpu: $$tool"; \
	  PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --error-exitcode 1 --tool $$tool \
	    $(BIN)/python -m pytest -q $(SANITIZED_KERNELS) || exit 1; \
	done

docs docs-serve $(DOCS)/.docs: BIN := $(DOCS)/$(BIN_NAME)
docs: $(DOCS)/.docs
	@$(BUILD_DOCS)
	@echo 'docs: build/docs/index.html'

docs-serve: docs
	@$(BIN)/python -m http.server --bind localhost --directory build/docs $(DOCS_PORT)

# Three parts, which `make -j2 check` does beside each other: the site is built on one core.
check: check-code check-site check-wheel

check-code: $(VENV)/.dev
	@echo 'check: format';    $(BIN)/ruff format --quiet --check --diff . && $(BIN)/clang-format --dry-run --Werror $(NATIVE_FILES)
	@echo 'check: headers';   for header in $(filter %.hpp,$(NATIVE_FILES)); do \
	  $(CXX) -std=c++17 -fvisibility=hidden -fsyntax-only $$($(BIN)/python -c $(INCLUDES)) -x c++ -include $$header /dev/null || exit 1; done
	@echo 'check: lint';      $(BIN)/ruff check --quiet .
	@echo 'check: types';     $(BIN)/mypy --no-error-summary
	@echo 'check: layers';    out=$$($(BIN)/lint-imports 2>&1) || { echo "$$out"; exit 1; }
	@echo 'check: budgets';   $(BIN)/python tools/check_budgets.py
	@echo 'check: spelling';  $(BIN)/codespell
	@echo 'check: doctests';  $(BIN)/python -m pytest -q --import-mode=prepend --doctest-modules src

check-site: $(DOCS)/.docs
	@echo 'check: documentation'; $(BUILD_DOCS)

check-wheel: wheel
	@echo 'check: the wheel in a fresh venv'
	@$(BIN)/python -m venv --clear $(SMOKE)
	@$(SMOKE)/bin/python -m pip --disable-pip-version-check install -qq -c constraints.txt dist/*.whl
	@cd $(SMOKE) && bin/python -I ../../tools/smoke.py

mutants: $(VENV)/.mutants
	@$(BIN)/python tools/mutants.py $(MUTANTS_ARGS)

# Threads: C++ drivers of the core, because CPython is not built for that sanitizer.
# Memory: the tests, in a venv that sees the packages of .venv but has its own treefold. CPython is not built for this
# one either, so its runtime is loaded first (libstdc++ with it, or it cannot follow exceptions), and leaks are not looked
# for: the interpreter keeps much of what it allocates until the process ends. A failed allocation is a null pointer, as
# without the sanitizer.
sanitize: $(VENV)/.dev
	@echo 'sanitize: threads (compiles the native core)'
	@$(INSTALL) --no-deps --upgrade --target $(SANITIZE)/thread/site $(NATIVE) --config-settings install.strip=false \
	  --config-settings build-dir=$(SANITIZE)/thread/cmake --config-settings cmake.define.TREEFOLD_SANITIZE=thread \
	  --config-settings cmake.define.TREEFOLD_DRIVER=ON .
	@for driver in $(SANITIZE)/thread/cmake/treefold_*driver; do TSAN_OPTIONS=halt_on_error=1 $$driver || exit 1; done
	@echo 'sanitize: addresses and undefined behaviour (compiles the native core)'
	@$(BIN)/python -m venv --clear --without-pip $(SANITIZE)/venv
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
	  > "$$($(SANITIZE)/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tests.pth"
	@$(PIP) --python $(SANITIZE)/venv/bin/python install -qq --no-deps --ignore-installed $(NATIVE) \
	  --config-settings install.strip=false --config-settings build-dir=$(SANITIZE)/address/cmake \
	  --config-settings cmake.define.TREEFOLD_SANITIZE=address,undefined .
	@LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1 \
	  UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 TREEFOLD_CASES=10 \
	  $(SANITIZE)/venv/bin/python -m pytest -q -n $(WORKERS) $(SANITIZED_TESTS) $(PYTEST_ARGS)

bench: $(VENV)/.bench
	@$(BIN)/python benchmarks/memory.py $(BENCH_ARGS)

bench-gpu: $(VENV)/.test
	@$(BIN)/python benchmarks/gpu.py $(BENCH_ARGS)

wheel: $(VENV)/.dev
	@echo 'building dist/ (compiles the native core)'
	@rm -rf dist
	@$(PREPARE)
	@out=$$($(BIN)/python -m build $(NATIVE) --outdir dist $(BUILT) 2>&1) || { echo "$$out"; exit 1; }

wheels: $(VENV)/.wheels
	@rm -rf dist
	@$(PREPARE)
	@$(BIN)/python -m cibuildwheel --output-dir dist $(BUILT)

try-wheels:
	@$(PYTHON) tools/try_wheels.py --compilers $(COMPILERS) $(PYTHONS)

clean:
	rm -rf $(VENV) $(CORE) $(DOCS) $(RECIPES) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.created $(CORE)/.created $(DOCS)/.created $(RECIPES)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "treefold needs Python 3.11 or newer, but $(PYTHON) is older. Name another: make PYTHON=python3.12 ...")'
	@echo 'creating $(@D)'
	@$(PYTHON) -m venv $(@D)
	@touch $@

# An extra includes the ones before it, so installing it also brings their stamps up to date.
COVERED_demo := demo
COVERED_bench := demo bench
COVERED_test := demo test
COVERED_dev := demo test dev
COVERED_mutants := demo test mutants

$(VENV)/.demo $(VENV)/.bench $(VENV)/.test $(VENV)/.dev $(VENV)/.mutants: $(VENV)/.%: $(INSTALL_INPUTS) | $(VENV)/.created
	@echo 'installing treefold[$*] into $(VENV) (compiles the native core; the first time takes minutes)'
	@$(INSTALL) --editable '.[$*]'
	@touch $(COVERED_$*:%=$(VENV)/.%)

# Environments of one extra each: nothing else can be imported there by accident.
$(CORE)/.test-core: | $(CORE)/.created
$(DOCS)/.docs: | $(DOCS)/.created
$(RECIPES)/.recipes: | $(RECIPES)/.created
$(CORE)/.test-core $(DOCS)/.docs $(RECIPES)/.recipes: $(INSTALL_INPUTS)
	@echo 'installing treefold[$(patsubst .%,%,$(@F))] into $(@D) (compiles the native core)'
	@$(INSTALL) --editable '.[$(patsubst .%,%,$(@F))]'
	@touch $@

$(VENV)/.wheels: constraints.txt | $(VENV)/.created
	@$(INSTALL) cibuildwheel
	@touch $@
