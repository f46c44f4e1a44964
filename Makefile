# The only entry point for people. `make help` lists the verbs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CACHE := $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/weir
export PATH := $(CACHE)/bin:$(PATH)
export GOTOOLCHAIN := local
# The images need static binaries; with one setting everywhere nothing is compiled twice.
export CGO_ENABLED := 0

.PHONY: help
help: ## List the verbs
	@awk 'BEGIN {FS = ":.*## "} /^[a-z][a-z0-9-]*:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install everything that a fresh Debian 12 with Go and Rust lacks
	@setup/setup.sh all

.PHONY: setup-build
setup-build:
	@setup/setup.sh build

.PHONY: build
build: setup-build ## Build engine, client, operator and CSI driver (release)
	cargo build --locked --release --workspace
	go build -o target/bin/ ./operator/cmd/... ./csi/cmd/...

.PHONY: run
run: ## The main job: a cluster, weir on it, a real source tree through it, a crash, and back
	@setup/setup.sh cluster
	@e2e/run.sh

.PHONY: dev
dev: build ## Start the same engine without Kubernetes: three engines on loopback and a mount
	@target/release/weir dev up

.PHONY: test
test: ## Pass the tests: units, simulation, processes, mounts, controllers, csi-sanity, chart (CRATE=store: of one crate or Go folder)
	@setup/setup.sh test
	@setup/test.sh $(if $(CRATE),crate $(CRATE))

.PHONY: nvme
nvme: ## Test a store and an engine on emulated NVMe drives, by passed-through commands, in a virtual machine
	@setup/setup.sh machine
	@e2e/nvme/run.sh

.PHONY: verbs
verbs: ## Test fabric, RPC and an engine on soft RoCE, by the verbs provider, in a virtual machine (TESTS=all for all tests)
	@setup/setup.sh machine
	@e2e/verbs/run.sh $(TESTS)

.PHONY: e2e
e2e: ## Test on a real Kubernetes cluster: the story of `make run` with assertions, then bad input
	@setup/setup.sh cluster
	@e2e/test.sh

.PHONY: compat
compat: setup-build ## Run the pinned earlier release against this one, both ways, under load, while engines are replaced one by one
	@setup/compat.sh

.PHONY: libfabric
libfabric: setup-build ## Test fabric and RPC with a newer libfabric, or the one in LIBFABRIC=folder
	@setup/newer_libfabric.sh $(LIBFABRIC)

.PHONY: mercury
mercury: setup-build ## Lint and test what speaks Mercury, where pkg-config finds it
	@setup/mercury.sh

.PHONY: spdk
spdk: setup-build ## Lint and test what drives devices by SPDK, where pkg-config finds it
	@setup/spdk.sh

.PHONY: sim
sim: setup-build ## Run the simulated cluster over many seeds (SEEDS=1000), all tests or the one named TEST, from seed FROM on
	WEIR_SIM_SEEDS=$(or $(SEEDS),1000) $(if $(FROM),WEIR_SIM_FROM=$(FROM)) \
		cargo test --locked --release -p weir-daemon --test sim -- $(if $(TEST),$(TEST) --exact) --nocapture

.PHONY: soak
soak: setup-build ## Soak the store in simulation, with random faults (SOAK_SECONDS=3600; failing seeds go to target/soak), then histories of transactions
	WEIR_STORE_SOAK_SECONDS=$(or $(SOAK_SECONDS),3600) cargo test --locked --release -p weir-store --test store \
		random_faults -- --nocapture
	WEIR_HISTORIES=$$((20 * $(or $(SOAK_SECONDS),3600))) cargo test --locked --release -p weir-store --test store \
		transactions::histories -- --nocapture

.PHONY: soak-rpc
soak-rpc: setup-build ## Soak requests in simulation, with random faults, until nothing is left of them (REQUESTS=10000000)
	WEIR_SOAK_REQUESTS=$(or $(REQUESTS),10000000) cargo test --locked --release -p weir-rpc --test rpc soak:: -- --nocapture

.PHONY: fuzz
fuzz: setup-build ## Fuzz everything that is decoded (FUZZ_SECONDS=300); failures go to target/fuzz/failures
	@FUZZ_SECONDS=$(or $(FUZZ_SECONDS),300) engine/fuzz/run.sh

.PHONY: bench
bench: ## Measure beside references; prints a table and writes target/bench/results.json
	@setup/setup.sh bench
	@bench/run.sh

.PHONY: scale
scale: ## Measure the operator with many objects on a real API server (CONTAINERS=10000 NODES=500 TENANTS=200), beside what `make bench` writes
	@setup/setup.sh build
	@KUBEBUILDER_ASSETS=$$(setup/setup.sh assets) WEIR_SCALE_OUTPUT=$(CURDIR)/target/bench/results.json \
		WEIR_SCALE_CONTAINERS=$(CONTAINERS) WEIR_SCALE_NODES=$(NODES) WEIR_SCALE_TENANTS=$(TENANTS) \
		go test ./operator/tests -run '^$$' -bench OperatorAtScale -benchtime 1x -timeout 2h

.PHONY: lint
lint: ## Check format, lints, licences, shell, generated files and house rules
	@setup/setup.sh lint
	@setup/lint.sh

.PHONY: fmt
fmt: ## Format all sources
	cargo fmt --all
	gofmt -w operator csi e2e charts engine/proto client

.PHONY: generate
generate: ## Generate protocol code, CRDs and reference pages
	@setup/setup.sh lint
	@setup/generate.sh

.PHONY: docs
docs: ## Generate the reference pages and the pages of the Rust crates, and check every link
	@setup/setup.sh lint
	@setup/generate.sh
	@setup/links.sh
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --exclude weir-fuzz

.PHONY: wheel
wheel: setup-build ## Build the Python package into target/wheels
	@setup/python.sh wheel

.PHONY: install
install: build ## Install weir, daos and dmg, what programs for DAOS are built with, and the library that has programs pass mounts (PREFIX=/usr/local)
	@setup/install_programs.sh target/release/weir $(or $(PREFIX),/usr/local)
	@setup/install_client.sh target/release/libdaos.so $(or $(PREFIX),/usr/local) target/release/libweir_direct.so

.PHONY: consumers
consumers: setup-build ## Build programs for DAOS (fio, ROMIO) with the client's headers, from Debian's sources, and have them write and verify
	@client/libdaos/consumers/run.sh

.PHONY: images
images: ## Build the container images
	@setup/setup.sh cluster
	@images/build.sh

.PHONY: charts
charts: ## Check and package the Helm chart into target/charts
	@setup/setup.sh test
	helm lint --strict charts/weir
	helm package charts/weir --destination target/charts

.PHONY: clean
clean: ## Remove the cluster, mounts, processes and build products (the download cache stays)
	@e2e/clean.sh
	rm -rf target
