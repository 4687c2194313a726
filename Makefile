# Targets that need .venv/ create or update it first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Many tests wait for other processes, so four workers keep two cores busy.
WORKERS ?= 4
# Tests of interop run a JVM or two each.
INTEROP_WORKERS ?= 3
RELEASE = build/release-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
DIST ?= dist
FUZZ := .venv-fuzz
FUZZ_S ?= 60
# The program that tests of failover run: the machine's own, or one that is fetched.
ETCD := $(or $(FIRETRAIL_ETCD),$(shell command -v etcd),build/etcd)
MINUTES ?= 5

# Without compiled files, every process of the tests would compile Firetrail and its packages again.
unexport PYTHONDONTWRITEBYTECODE

SHUFFLE := $(if $(filter random,$(ORDER)),-p randomly $(if $(SEED),--randomly-seed=$(SEED)))
# The constants of kernels are computed from the modules of the format.
KERNELS := $(wildcard src/firetrail/*/kernels/*.py src/firetrail/*/kernels/*.pxd src/firetrail/format/*.py)

TOOLS_EXTRAS := dev,peers,release,auth,broker,compression,grpc
SPARK_EXTRAS := spark,delta,iceberg,avro,protobuf,s3

PIP_INSTALL = -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Kernels are compiled in a rule of their own, so that editing one recompiles only that one.
INSTALL_EDITABLE = FIRETRAIL_NO_KERNELS=1 $(BIN)/python $(PIP_INSTALL) --no-build-isolation --editable
# $(call step,WHAT,COMMAND) runs a command and prints what it does and how long it took.
step = @printf '%s ... ' '$(1)'; begun=$$(date +%s); { $(2); } && echo "$$(($$(date +%s) - begun)) s"
# $(call logged,COMMAND) prints the end of the output of a command only if the command fails.
logged = $(1) > build/wheel/log 2>&1 || { echo failed; tail -n 30 build/wheel/log; false; }

.DEFAULT_GOAL := help
.PHONY: help setup demo test torture lint bench interop fuzz wheel distributions pythons clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.kernels $(VENV)/.spark-zips $(VENV)/spark-classes.jsa $(ETCD) ## Build .venv/ with Firetrail (editable, kernels compiled) and the tools

$(VENV)/.installed: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    f"Firetrail needs Python 3.11 or later, $(PYTHON) is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	$(call step,creating $(VENV)/,test -x $(BIN)/python || $(PYTHON) -m venv $(VENV))
	$(call step,installing setuptools and Cython,$(BIN)/python $(PIP_INSTALL) setuptools Cython)
	$(call step,installing Firetrail and the tools,$(INSTALL_EDITABLE) '.[$(TOOLS_EXTRAS)]')
	$(call step,installing Spark (0.5 GB),$(INSTALL_EDITABLE) '.[$(SPARK_EXTRAS)]')
	@touch $@

$(VENV)/.kernels: $(VENV)/.installed $(KERNELS)
	$(call step,compiling the kernels,$(BIN)/python setup.py --quiet build_ext --inplace)
	@touch $@

# Without it, every Python process of Spark compiles PySpark first, and nothing else changes.
$(VENV)/.spark-zips: tests/machine/spark_zips.py $(VENV)/.installed | $(VENV)/.kernels
	-$(call step,compiling PySpark for its workers,$(BIN)/python -m tests.machine.spark_zips)
	@touch $@

# Without the archive, every test that starts Spark takes some seconds longer, and nothing else changes.
$(VENV)/spark-classes.jsa: tests/machine/jvm.py $(VENV)/.installed | $(VENV)/.kernels
	-$(call step,archiving classes of Spark for the tests,$(BIN)/python -m tests.machine.jvm)

# Without etcd, tests that need it are skipped, and the last lines of the run say so.
build/etcd: | $(VENV)/.installed
	-$(call step,fetching etcd for the tests,$(BIN)/python -m tests.machine.etcd_program)

$(VENV)/stock-client: interop/cpp/requirements.txt | $(VENV)/.installed
	-$(call step,installing the C++ client of RocketMQ,$(BIN)/python -m pip install --quiet \
	    --disable-pip-version-check --no-deps --target $@ --requirement $<)

demo: setup $(VENV)/stock-client ## See it work: a store, a crash, a broker with a stock client, Spark
	@$(BIN)/python examples/demo.py

test: setup ## Run the tests, then those of the kernels again uncompiled; ORDER=random shuffles, SEED= repeats
	$(BIN)/pytest -q -n $(WORKERS) --dist loadgroup $(SHUFFLE)
	FIRETRAIL_PURE=1 $(BIN)/pytest -q -n $(WORKERS) $(SHUFFLE) tests/*/kernels

torture: setup ## Kill, starve and break brokers for MINUTES; SEED= repeats a round, PART= picks a kind
	$(BIN)/python -m tests.torture --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(PART),--part '$(PART)')

lint: setup ## Check style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## Measure Firetrail and the Java store side by side (Java and Maven needed)
	$(BIN)/python -m benchmarks

# The order is that of interop/conftest.py. By default, files with few tests would come last, and some
# of those take minutes.
interop: setup ## Hand stores to and from the real Java store, run stock clients (Java and Maven needed)
	$(BIN)/pytest -q -n $(INTEROP_WORKERS) --dist loadfile --no-loadscope-reorder interop

# In an environment of its own: atheris instruments the sources, and is needed for nothing else.
$(FUZZ)/.installed: Makefile
	@test -x $(FUZZ)/bin/python || $(PYTHON) -m venv $(FUZZ)
	@$(FUZZ)/bin/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0 hpack orjson lz4 pyyaml zstandard
	@touch $@

fuzz: $(FUZZ)/.installed ## Feed generated input to all decoders of network data for FUZZ_S seconds
	@mkdir -p build/fuzz
	PYTHONPATH=src FIRETRAIL_PURE=1 $(FUZZ)/bin/python fuzz/wire.py build/fuzz \
	    -artifact_prefix=build/ -max_total_time=$(FUZZ_S) -rss_limit_mb=1024 -timeout=10

# One environment per Python version, because a wheel holds extension modules for one version.
build/release-%/.installed: pyproject.toml setup.py constraints.txt
	$(call step,creating $(@D)/,test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D))
	$(call step,installing setuptools and Cython,$(@D)/bin/python $(PIP_INSTALL) setuptools Cython)
	$(call step,installing the release tools,FIRETRAIL_NO_KERNELS=1 $(@D)/bin/python $(PIP_INSTALL) \
	    --no-build-isolation --editable '.[release]')
	@touch $@

wheel: ## Build an sdist and a manylinux wheel into dist/; PYTHON= picks the interpreter
	@$(MAKE) --no-print-directory $(RELEASE)/.installed
	@$(MAKE) --no-print-directory distributions TOOLS=$(RELEASE)/bin/python

# The wheel is built from the sdist, so a file that the sdist lacks fails the build. Only the wheel
# needs compiled kernels. auditwheel gives the wheel the oldest manylinux tag that its symbols allow;
# "--patcher none" makes it fail instead of copying a library into the wheel.
distributions:
	@rm -rf build/wheel
	@mkdir -p build/wheel $(DIST)
	$(call step,building the sdist,$(call logged,FIRETRAIL_NO_KERNELS=1 \
	    $(TOOLS) -m build --sdist --no-isolation --outdir build/wheel .))
	$(call step,building the wheel,$(call logged,\
	    $(TOOLS) -m build --wheel --no-isolation --outdir build/wheel build/wheel/*.tar.gz))
	$(call step,checking the wheel,$(call logged,\
	    $(TOOLS) -m auditwheel repair --patcher none --wheel-dir $(DIST) build/wheel/*.whl))
	@cp build/wheel/*.tar.gz $(DIST)

pythons: ## Run the tests on the Pythons of Debian trixie and sid (root and debootstrap needed)
	$(PYTHON) -m tests.machine.pythons $(if $(ONLY),--only $(ONLY)) -- $(ARGS)

clean: ## Remove everything that the other targets made
	rm -rf $(VENV) interop/target $(FUZZ) build dist src/*.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	rm -f src/firetrail/*.so src/firetrail/*/kernels/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
