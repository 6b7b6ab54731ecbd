# Everything is done with `make`, from a bare clone, with Python 3.11 (or later) and a JDK 17 (or later).
# `make` alone lists the targets.

.DEFAULT_GOAL := help
.PHONY: nightly sweeps mutants backlog bounds benchmark benchmark-latency benchmark-loader benchmark-topologies cluster-check docs memory properties help large-table setup demo services images images-check check test unit integration format lock clean simulate chaos two-loaders model deploy-check audit sbom foreign native-fuzz fuzz warm java-archives
SHELL := /bin/sh

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
NATIVE := $(addprefix stage_writer/native/,json_reader.c avro_reader.c taker.c text.h values.h columns.h compiler.py zig.lock)
LOCKS := requirements.lock pyproject.toml delta_loader/jars.lock $(wildcard delta_loader/java/*.java) devservices/kafka.lock $(NATIVE)
STORE ?= file
S3 ?= moto
TESTS ?= tests
SEEDS ?= 10000
MINUTES ?= 5
SECONDS ?= 60
WORKERS ?= 4
ROUNDS ?= 1000000
SCALE ?= 1
MARKERS ?= 10000
PARTITIONS ?= 1000
HEAP ?= 1g
FILES ?= 1000000
COMMITS ?= 100
SECTIONS ?=
# Programs check their own arguments; these two reach a test's code as they are.
$(foreach name,SEED ROUNDS,$(if $(shell printf %s '$($(name))' | tr -d 0-9),$(error $(name)=$($(name)) is no whole number)))
# Each of pytest's processes would compile all modules and tests, where the environment says that none is kept.
KEEP_BYTECODE := PYTHONDONTWRITEBYTECODE=
# What is installed is compiled where it is imported: a fifth of it.
PIP := $(KEEP_BYTECODE) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# Clones share what mypy has found in files of the same content.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kafka-delta-express/mypy
# What is drawn each time, where SEED=… does not say: each use is another number, and is printed with what it is for.
NEW_SEED = $(shell od -An -N3 -tu4 /dev/urandom | tr -d ' ')
IMAGE_LOCK := --universal --generate-hashes --no-emit-index-url --no-header --python-version 3.11 \
	--constraint requirements.lock --quiet --output-file

# The first interpreter that runs (a pyenv shim may not) and can make a virtual environment. PYTHON=… overrides.
PYTHON ?= $(shell for python in python3.11 "$$HOME"/.pyenv/versions/3.11.*/bin/python /usr/bin/python3.11 \
	/usr/local/bin/python3.11 /opt/homebrew/bin/python3.11 python3 python3.12 python3.13 python; do \
	"$$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null \
	&& echo "$$python" && break; done)
JAVA := $(if $(JAVA_HOME),$(JAVA_HOME)/bin/java,java)

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup: $(STAMP) ## the virtual environment and the jars, exactly as locked; does nothing if they exist

$(STAMP): $(LOCKS)
	@test -n "$(PYTHON)" || { echo "No Python 3.11 to 3.13 with venv found: install one, or say make PYTHON=/path/to/python3.11"; exit 2; }
	@"$(JAVA)" -XshowSettings:properties -version 2>&1 | awk '/java.specification.version/ { found = $$3 } END { exit found < 17 }' || { echo "No Java 17 or later found: install a JDK 17 or later, or set JAVA_HOME"; exit 2; }
	@echo "Setting up $(VENV) with $(PYTHON)"
	@test -x $(BIN)/python && $(BIN)/python -m pip --version >/dev/null 2>&1 || { rm -rf $(VENV) && "$(PYTHON)" -m venv $(VENV); }
	@sed -n '/^pip==/,/[^\\]$$/p' requirements.lock | $(PIP) --require-hashes --no-deps -r /dev/stdin # Python's own pip is slow
	@$(PIP) --require-hashes --no-deps -r requirements.lock
	@$(PIP) --no-build-isolation --no-deps --editable .
	@echo "Fetching the jars of Delta, Hadoop's S3 client and Kafka, and compiling the loader's Java classes"
	@$(BIN)/python -m delta_loader.spark.jars
	@$(BIN)/python -m devservices.kafka
	@echo "Compiling the writer's reader of JSON"
	@$(BIN)/python -m stage_writer.native
	@touch $@

demo: setup ## 336,776 real flights from Kafka into a Delta table (STORE=s3, moto or versitygw; KEEP=1)
	@$(BIN)/python -m demo --store $(STORE) $(if $(KEEP),--keep)

services: setup ## a Kafka broker and an S3 server until Ctrl+C (S3=moto, versitygw, minio or none)
	@$(BIN)/python -m devservices up --s3 $(S3)

images: setup ## both images of deploy/images, without Docker or a registry: needs root on Linux, buildah, runc, debootstrap (CI=1: skipped, with the reason, if one is missing)
	@$(BIN)/python -m devservices.images $(if $(CI),--ci)

images-check: setup ## the same, then runs them as confined as in compose: check, stage, load by add and by append
	@$(BIN)/python -m devservices.images --check $(if $(CI),--ci)

check: setup ## style, types, import contracts, and whether the generated pages are up to date
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m common.reference --check

# Made once, while the types are checked: after a clone, each of pytest's processes would compile all modules and tests,
# and wait for Spark's classes. The tests report what fails here.
warm: setup
	@$(KEEP_BYTECODE) $(BIN)/pytest $(TESTS) --collect-only -qq >/dev/null 2>&1 || true
	@$(KEEP_BYTECODE) $(BIN)/python -c 'import devservices.moto_server' || true

java-archives: setup
	@$(KEEP_BYTECODE) $(BIN)/python -c 'from tests.spark_archive import use_spark_archive; use_spark_archive()' || true
	@$(KEEP_BYTECODE) $(BIN)/python -c 'from devservices.kafka import keep_parsed_classes; keep_parsed_classes()' || true

unit: setup ## the tests that need no server, within a minute, with a few examples per property
	$(KEEP_BYTECODE) PROPERTIES=few $(BIN)/pytest tests/unit tests/property tests/architecture --numprocesses 3 --dist loadfile

integration: setup ## the tests that need a broker, an S3 server or Spark
	$(BIN)/pytest tests/contract tests/integration

simulate: setup ## thousands of simulated histories of the real services under faults (SEEDS=…), also with each rule broken on purpose
	$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(or $(SEED),0)
	$(BIN)/python -m tests.simulation.sweep

chaos: setup ## real processes killed, paused and disconnected for MINUTES=5 (STORE=versitygw or minio, SEED=…, STATE=none, stage, topic or events, KEEP=1), then a check of every record
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) --store $(if $(filter file,$(STORE)),versitygw,$(STORE)) \
		$(if $(SEED),--seed $(SEED)) $(if $(STATE),--state $(STATE)) $(if $(KEEP),--keep)

two-loaders: setup ## two loaders without a lease race on one table on S3 for MINUTES=5 (STORE=moto, versitygw or minio)
	@$(BIN)/python -m tests.chaos.two_loaders --minutes $(MINUTES) --store $(if $(filter file,$(STORE)),versitygw,$(STORE))

benchmark: setup ## messages per CPU-second: ours, Spark, and the lower bound, in turns (SCALE=…, SECTIONS="kinds avro envelopes partitions bad writers", KEEP=1 for the page)
	$(BIN)/python -m benchmarks.writer $(SECTIONS) --scale $(SCALE) $(if $(KEEP),--keep)
	$(if $(KEEP),$(BIN)/python -m benchmarks.report)

benchmark-loader: setup ## the cost of a load, compared with Spark's own read and append or MERGE (SCALE=…, SECTIONS="files bytes merges explodes", KEEP=1 for the page)
	$(BIN)/python -m benchmarks.loader $(SECTIONS) --scale $(SCALE) $(if $(KEEP),--keep)

benchmark-latency: setup ## from a record's creation until it is readable: on-marker, with a control topic, and Structured Streaming with an equal trigger (KEEP=1 for the page)
	$(BIN)/python -m benchmarks.latency $(if $(KEEP),--keep)

benchmark-topologies: setup ## the cost of a message in a topology, and in Kafka Streams on the same topic (SCALE=…, SECTIONS="records vectorised windowed restores changes", KEEP=1 for the page)
	$(BIN)/python -m benchmarks.topologies $(SECTIONS) --scale $(SCALE) $(if $(KEEP),--keep)

cluster-check: setup ## the loader on a real Spark cluster of two workers: mixed files and appends run there
	$(BIN)/pytest tests/integration/test_cluster.py -m nightly

backlog: setup ## MARKERS=10000 that wait over PARTITIONS=1000, loaded with a heap of HEAP=1g: time, memory, each record once (STORE=file or moto)
	$(BIN)/python -m benchmarks.backlog --markers $(MARKERS) --partitions $(PARTITIONS) --heap $(HEAP) --store $(STORE)

large-table: setup ## loads into a table of FILES=1000000 files (COMMITS=100, or 0: in a checkpoint), with a heap of HEAP=1g: time, CPU, memory, checkpoints
	$(BIN)/python -m benchmarks.backlog --table-files $(FILES) --table-commits $(COMMITS) --max-files 100 --markers 1200 --partitions 100 --heap $(HEAP)

memory: setup ## the writer's peak of memory on 1,000 partitions, 10 MB messages and thousands of partition values (SCALE=…, KINDS=…, STORE=…)
	$(BIN)/python -m benchmarks.memory $(KINDS) --scale $(SCALE) --store $(STORE)

docs: setup ## the documentation site, in build/site; fails on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

deploy-check: setup ## lint, render and validate deploy/, and make each alert fire (the first run builds two tools with Go, which takes a while)
	$(BIN)/python -m devservices.deploy_tools
	DEPLOY_TOOLS=required $(BIN)/pytest tests/architecture/test_deployment.py tests/deploy

model: setup ## every state of the chain's model within bounds, by a model checker, also with each rule broken on purpose (minutes)
	$(BIN)/python -m model

mutants: setup ## changes critical modules in one place at a time, and lists the changes that no fast test detects (MODULES=…, SAMPLE=200, SEED=…)
	$(BIN)/python -m tests.mutants $(MODULES) $(if $(SAMPLE),--sample $(SAMPLE)) $(if $(SEED),--seed $(SEED))

properties: setup ## the property tests with many times as many examples, other than those of `make test` (SEED=…)
	PROPERTIES=other $(BIN)/pytest tests/property --numprocesses $(WORKERS) --dist loadfile \
		--hypothesis-seed=$(or $(SEED),$(NEW_SEED))

sweeps: setup ## the tests that are too long for `make test`, with their own seeds (SEED=…)
	FRESH_SEED=$(or $(SEED),$(NEW_SEED)) $(BIN)/pytest tests -m nightly --numprocesses $(WORKERS) --dist loadfile --timeout=3600

nightly: setup ## every sweep, for hours, each with a new seed; SEED=… repeats one
	@$(MAKE) --keep-going --no-print-directory SEED=$(or $(SEED),$(NEW_SEED)) \
		sweeps properties simulate native-fuzz fuzz chaos two-loaders foreign memory backlog model

fuzz: setup ## arbitrary bytes for the decoder for SECONDS=60, compared with the strict decoder (the extra `fuzz`)
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS)

native-fuzz: setup ## hostile bytes for the parts in C under the compiler's sanitizers (ROUNDS=…, SEED=…)
	ROUNDS=$(ROUNDS) $(if $(SEED),SEED=$(SEED)) $(BIN)/pytest tests/unit/stage_writer/native/test_native_sanitized.py

foreign: setup ## the loader while other programs OPTIMIZE, MERGE, DELETE and ALTER TABLE in a loop (MINUTES=…)
	$(BIN)/python -m tests.soak.foreign_writers --minutes $(MINUTES)

test: setup ## all checks, and all tests except the sweeps, in WORKERS=4 processes with a broker each, and Spark in half of them
	@$(MAKE) --jobs=3 --no-print-directory check warm java-archives
	$(KEEP_BYTECODE) $(BIN)/pytest $(TESTS) --numprocesses $(WORKERS) --dist loadfile --junitxml=build/tests.xml

format: setup ## format the code (ruff format)
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

lock: setup ## resolve requirements.lock (the jars: python -m devservices.lock_jars)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --generate-hashes --no-emit-index-url --no-header \
		--python-version 3.11 --upgrade --quiet --output-file requirements.lock
	$(BIN)/uv pip compile pyproject.toml --extra stage-writer --extra schema-registry --extra avro --extra json-schema --extra protobuf \
		$(IMAGE_LOCK) deploy/images/stage-writer.lock
	$(BIN)/uv pip compile pyproject.toml --extra delta-loader $(IMAGE_LOCK) deploy/images/delta-loader.lock
	echo hatchling | $(BIN)/uv pip compile - $(IMAGE_LOCK) deploy/images/build.lock

bounds: setup ## the tests of code that reads libraries' internals, with the lowest and highest allowed versions
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/python -m devservices.dependency_bounds

build/tools/.ready:
	@"$(PYTHON)" -m venv build/tools && build/tools/bin/pip install --quiet --disable-pip-version-check pip-audit cyclonedx-bom
	@touch $@

audit: build/tools/.ready ## known vulnerabilities of the locked Python packages (asks PyPI)
	build/tools/bin/pip-audit --strict --disable-pip --require-hashes --requirement requirements.lock

sbom: setup build/tools/.ready ## a software bill of materials for each image, in CycloneDX: build/*.cdx.json
	for image in stage-writer delta-loader; do \
		build/tools/bin/cyclonedx-py requirements deploy/images/$$image.lock --output-reproducible -o build/$$image.cdx.json || exit 1; done
	$(BIN)/python -m devservices.bill_of_jars build/delta-loader.cdx.json
	@ls build/*.cdx.json

clean: ## remove what make created here; the cache in ~/.cache/kafka-delta-express stays
	rm -rf $(VENV) build dist demo/.run .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
