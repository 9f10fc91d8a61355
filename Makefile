# Every target that a person may call has a "## " comment, which "make" lists.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS   += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
BIN     := bin/starling
# The modules beside the main one have heavy dependencies that must not be its.
MODULES := $(sort $(dir $(shell find . -name go.mod -not -path '*/build/*')))

# The versions of SDKs that compat runs: newest, all, or names from test/compat.
SDKS := newest

.PHONY: help build run cluster test test-full check unit contrib golden compat compat-full probes attack attack-full durable durable-full soak sim mutants failover failover-full chaos chaos-full chaos-broken deploy-check deploy-manifests beats power fuzz bench bench-client bench-cluster microbench pgo proto clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

# Where text/template can be reached, the linker keeps all exported methods of
# all types: 3 MB of the program, and of its memory. So grpc goes without pages
# of its traces, and cobra without templates of ours.
TAGS = -tags grpcnotrace

build: ## build the static binary bin/starling
	CGO_ENABLED=0 go build $(TAGS) -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN) ./cmd/starling

run: build ## run a node on this machine, with its data in ./starling-data
	@exec $(BIN) serve

cluster: build ## run three nodes on this machine until Ctrl-C, to try things out
	@exec deploy/cluster.sh $(BIN)

test: ## everything that must hold; what CI runs
	@$(call run-all,check unit contrib golden compat probes attack durable power failover chaos deploy-check beats)
	@lacks=$$(sed -n '/^not run for lack of/{N;s/\n\t*/; to install: /;p}' bin/compat.log bin/probes.log; sed -n 's/^ *[Ss]kipped.*/a run of failover was skipped/p' bin/failover.log | head -n 1; sed -n 's/^left out: /chaos: /p' bin/chaos.log; sed -n 's/^skip \([a-z-]*\) .*skipped: /durable \1 was skipped: /p' bin/durable.log; sed -n 's/^ .*: \(not run for lack of .*\)/deploy-check: \1/p' bin/deploy.log); \
	echo "make test: check, unit, contrib, golden, compat, probes, attack, durable, power, failover, chaos, deploy-check and beats passed; $${lacks:-nothing was skipped}"

# The long forms: each is a target of its own, add yours.
FULL := compat-full attack-full durable-full soak sim mutants failover-full chaos-full chaos-broken

test-full: ## make test, and the forms that take long: about an hour more
	@$(call run-all,test $(FULL))

# run-all runs targets one after the other and says how long each took.
run-all = for t in $(1); do \
		start=$$SECONDS; echo "== $$t"; $(MAKE) $$t; echo "== $$t passed in $$((SECONDS - start)) s"; \
	done

check: ## formatting, analysers, imports between packages, tidiness of go.mod
	@unformatted=$$(gofmt -l $$(find . -name '*.go' -not -path '*/build/*')); \
	[ -z "$$unformatted" ] || { echo "not formatted, run gofmt -w: $$unformatted"; exit 1; }
	@for dir in $(MODULES); do (set -x; cd $$dir; go mod tidy -diff; go vet ./...; go tool -modfile=$(CURDIR)/tools.mod staticcheck ./...; go fix -diff ./...); done
	go test -count=1 .

# On several processors the race detector of Go 1.26 crashes (SIGSEGV, one run in
# three of test/sim) where goroutines of a bubble of virtual time read channel
# timers while others fire: they use one context of it at the same time. What has
# whole clusters in a bubble runs on one; what the detector finds, it finds there
# too.
CLUSTERS := ./test/sim/... ./distro ./cluster ./raftstore

unit: ## all tests of the main module, with the race detector
	go test -race -shuffle=on -count=1 $$(go list ./... | grep -vE '/(test/sim|test/sim/mutants|distro|cluster|raftstore)$$')
	go test -race -shuffle=on -count=1 -cpu=1 $(CLUSTERS)

# Without the race detector, with which all of the frameworks would be compiled
# once more: minutes for those of Kubernetes that go-zero brings.
contrib: build ## the adapters of contrib, each with its framework and a node, under two minutes
	@for mod in contrib/*/go.mod; do \
		(set -x; cd $$(dirname $$mod); STARLING_BIN=$(abspath $(BIN)) go test -count=1 -timeout=5m ./...); \
	done


# GOLDEN=^17- plays only the scenarios whose names match.
# Connecting, not binding, tells which ports are free: nothing more is at hand
# in a shell. -902 and the others are not opened by a single node. The recorded
# server had a leader, so that is waited for.
golden: build ## compare the answers of a node with recorded ones of a Nacos server
	@taken() { (exec 3<>/dev/tcp/127.0.0.1/$$1) 2>/dev/null; }; \
	port=18848; while taken $$port || taken $$((port + 1000)) || taken $$((port + 1001)) || taken $$((port - 902)); do port=$$((port + 10)); done; \
	dir=$$(mktemp -d); \
	$(BIN) serve --port $$port --data-dir $$dir/data --name golden >$$dir/log 2>&1 & node=$$!; \
	trap 'kill $$node 2>/dev/null || true; wait $$node || true; rm -rf $$dir' EXIT; \
	for i in {1..100}; do taken $$((port + 1000)) && taken $$port && $(BIN) raft --server 127.0.0.1:$$port >/dev/null 2>&1 && break; \
		kill -0 $$node 2>/dev/null && [ $$i -lt 100 ] || { cat $$dir/log; exit 1; }; sleep 0.1; done; \
	(cd test/golden && go run . check -http 127.0.0.1:$$port -grpc 127.0.0.1:$$((port + 1000)) \
		-scenarios scenarios -answers answers -only '$(GOLDEN)' -allow allowed.yaml) || \
		{ echo "the end of the node's log:"; tail -n 50 $$dir/log; exit 1; }; \
	kill $$node; wait $$node || { echo "the node did not stop cleanly:"; tail -n 50 $$dir/log; exit 1; }

# Without a package argument go test shows the output of tests that pass: which
# SDKs were skipped, and why. A run of all versions writes the report, any other
# fails if its results are not those that are written there.
compat: build ## run the official SDKs against a node, compare with docs/COMPATIBILITY.md
	@cd test/compat; go test -count=1 ./codec/...; \
	STARLING_BIN=$(abspath $(BIN)) COMPAT_SDKS=$(SDKS) COMPAT_REPORT=$(abspath docs/COMPATIBILITY.md) \
		go test -count=1 -timeout=20m -skip=$(PROBES) 2>&1 | tee $(abspath bin/compat.log)
	@for jars in test/compat/build/java-[23]*/lib; do \
		[ ! -d $$jars ] || STARLING_TEST_JAVA=$(abspath .)/$$jars go test -count=1 -run='^TestJavaReads$$' ./pkg/client; \
	done

# Its sub-tests mostly wait, so they all run at the same time.
PROBES := '^TestHealthChecks$$'

probes: build ## break and mend real TCP, HTTP and MariaDB servers that nodes check, under a minute
	@cd test/compat; STARLING_BIN=$(abspath $(BIN)) go test -count=1 -timeout=5m -parallel=40 -run=$(PROBES) 2>&1 | tee $(abspath bin/probes.log)

compat-full: ## run older SDKs too, write docs/COMPATIBILITY.md
	@$(MAKE) compat SDKS=all

attack: build ## mistreat a node and a cluster in every way known (test/attack), two to three minutes
	go run ./test/attack -bin $(BIN)

attack-full: build
	go run ./test/attack -bin $(BIN) -rounds 10

durable: build ## kill and damage clusters under clients that remember, 90 s
	@go run ./test/durable -bin $(BIN) 2>&1 | tee bin/durable.log

durable-full: build ## the same with more writes, and 100,000 of them: three minutes
	go run ./test/durable -bin $(BIN) -full

SOAK ?= 30m
soak: build
	go run ./test/attack -bin $(BIN) -soak $(SOAK)

# Failures print a schedule and a seed, and leave the history in the artifacts.
SEEDS ?= 200
SEED  ?= 1

sim: ## simulate clusters: named schedules, and SEEDS=200 random ones from SEED=1
	@mkdir -p bin/sim; SIM_SEEDS=$(SEEDS) SIM_SEED=$(SEED) SIM_NAMED=$(or $(NAMED),3) \
		go test ./test/sim -count=1 -timeout=2h -artifacts -outputdir=$(abspath bin/sim)

mutants: ## break the code on purpose and show that the simulation notices
	go run ./test/sim/mutants

power: ## cut the power of nodes behind acknowledged writes (root, loop devices)
	go test ./test/power -count=1 -v

# Its own tests first: a verdict that cannot fail is worth nothing. Fewer
# providers than in the long form, because CI has the time of four minutes.
failover: build ## break clusters under official SDKs, four ways, under four minutes
	@cd deploy/chaos; $(CHAOS_ENV) go test -count=1 -short ./...; cd ../..; \
	$(CHAOS) --scenario short --sdks $(FAILOVER) --providers 40 --subscribers 10 --report bin/failover 2>&1 | tee bin/failover.log

failover-full: build ## the same in all ways, with 100 providers: half an hour
	@$(CHAOS) --scenario all --sdks $(FAILOVER) --providers 100 --subscribers 10 --report bin/failover

# As root the first run has namespaces, and the second, behind relays, is what
# anybody else has. CHAOS_SEED=0 is another one each time.
chaos: build ## break a cluster in six ways drawn from a seed, and in two without root: under three minutes
	@$(CHAOS) --seed $(CHAOS_SEED) --quick --random 6 --providers 24 --subscribers 6 --report bin/chaos-report 2>&1 | tee bin/chaos.log; \
	$(CHAOS) --seed $(CHAOS_SEED) --no-root --by-name --faults dns:a:6s,restart:c+die --sdks http,starling --providers 12 --subscribers 4 --report bin/chaos-report-relay 2>&1 | tee -a bin/chaos.log

chaos-full: build ## all tests of it, scaling out behind a DNS name, and an hour of faults under all SDKs
	@cd deploy/chaos; $(CHAOS_ENV) go test -count=1 -timeout=20m ./...
	@$(CHAOS) --scenario scale-out --sdks all --report bin/chaos-report-scale-out; \
	$(CHAOS) --for 1h --sdks all --providers 100 --subscribers 20 --report bin/chaos-report-full

# Builds that are broken on purpose: a verdict that finds nothing wrong with them is
# worth nothing.
chaos-broken: build ## one schedule on broken servers, which must fail on each: five minutes
	@for broken in 'no adoption' 'no expiry probe' 'log: acknowledged at once'; do \
		go run ./test/sim/mutants -only "^$$broken\$$" -build bin/starling-broken; \
		if STARLING_BIN=$(abspath bin/starling-broken) deploy/chaos/chaos.sh --seed 1 --faults kill:b:8s,isolate:c:25s,isolate-leader:3s,isolate-leader:3s,isolate-leader:3s,isolate-leader:3s,isolate-leader:3s,isolate-leader:3s \
			--sdks http,starling --providers 12 --subscribers 4 --report bin/chaos-report-broken >bin/chaos-broken.log 2>&1; then \
			echo "nothing was found wrong with it"; exit 1; \
		fi; \
		grep '^Failed: ' bin/chaos-broken.log || { tail -n 20 bin/chaos-broken.log; exit 1; }; \
	done

CHAOS_SEED ?= 9
CHAOS_ENV  := STARLING_BIN=$(abspath $(BIN))
CHAOS      := $(CHAOS_ENV) deploy/chaos/chaos.sh

FAILOVER := go,java2,java3,python

deploy-check: build ## check image, compose file, chart, manifests and unit, and run nodes as they do, under a minute
	@cd deploy/check; STARLING_BIN=$(abspath $(BIN)) go test -count=1 -timeout=5m -v . 2>&1 | tee $(abspath bin/deploy.log)

deploy-manifests: build ## write what is made of other files: deploy/kubernetes/starling.yaml, the chart's alerts
	@cd deploy/check; STARLING_BIN=$(abspath $(BIN)) go test -count=1 -run='^(TestPlainManifests|TestChartHasTheAlerts)$$' . -update

# The long form, with 10,000 clients and the times of Nacos, is a part of
# bench-cluster.
beats: build ## 1,000 HTTP clients beat while a node is killed and one is added: nobody may notice, under a minute
	@CGO_ENABLED=0 go build -trimpath -o bin/bench ./test/bench; \
	bin/bench cluster -bin $(BIN) -only beats -quick

fuzz: ## run each fuzzer for 30 s
	@fuzzers=$$(grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cluster cmd distro pkg raftstore || true); \
	[ -n "$$fuzzers" ] || { echo "there are no fuzzers"; exit 1; }; \
	while IFS=: read -r file fuzzer; do \
		(set -x; go test -run=NONE -fuzz="^$${fuzzer#func }$$" -fuzztime=30s ./$$(dirname $$file)); \
	done <<<"$$fuzzers"

bench-cluster: build ## measure a cluster of three processes (17 minutes), write docs/BENCHMARKS-cluster.md
	@CGO_ENABLED=0 go build -trimpath -o bin/bench ./test/bench; \
	bin/bench cluster -bin $(BIN) -out docs/BENCHMARKS-cluster.md -commit $$(git rev-parse --short=12 HEAD)$$(git diff --quiet HEAD -- . ':!docs' || echo -dirty)

bench: build ## compare a node with bare gRPC and HTTP (14 minutes), write docs/BENCHMARKS.md
	@CGO_ENABLED=0 go build -trimpath -o bin/bench ./test/bench; \
	bin/bench run -bin $(BIN) -out docs/BENCHMARKS.md -commit $$(git rev-parse --short=12 HEAD)$$(git diff --quiet HEAD -- . ':!docs' || echo -dirty)

bench-client: build ## run the Go client beside the official one (12 minutes), write its part of docs/BENCHMARKS.md
	@cd test/compat; STARLING_BIN=$(abspath $(BIN)) BESIDE_REPORT=$(abspath docs/BENCHMARKS.md) \
		BESIDE_COMMIT=$$(git rev-parse --short=12 HEAD)$$(git diff --quiet HEAD -- .. ':!../../docs' || echo -dirty) \
		go test -count=1 -timeout=30m -v -run='^TestBeside$$'

COUNT ?= 8

microbench: ## benchmarks of components, for benchstat; COUNT=8 repetitions
	@go test -run=NONE -bench=. -benchmem -count=$(COUNT) ./pkg/...

# The compiler finds the profile by its name. Without a change of it the binary
# of a commit is always the same, so it is recorded by hand, at a release.
pgo: build ## record the profile that the compiler optimises for
	@mkdir -p bin/pgo; CGO_ENABLED=0 go build -trimpath -o bin/bench ./test/bench; \
	bin/bench profile $(BIN) bin/pgo; \
	go tool pprof -proto bin/pgo/*.prof >bin/default.pgo; mv bin/default.pgo cmd/starling/default.pgo

# protoc is Debian's protobuf-compiler; the generator has the version of the
# library in go.mod.
proto: ## generate the messages between nodes from proto/*.proto
	go build -o bin/protoc-gen-go google.golang.org/protobuf/cmd/protoc-gen-go
	protoc --plugin=bin/protoc-gen-go --go_out=. --go_opt=module=github.com/starling-registry/starling proto/*.proto

clean: ## remove what the other targets built; a node's data stays
	rm -rf bin test/compat/build
