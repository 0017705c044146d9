# Twill's build. `make help` lists the targets.
export CGO_ENABLED = 0
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS  = -s -w -X main.version=$(VERSION)
# grpcnotrace: gRPC's tracing pages drag in html/template, with which the linker must keep every method of every type.
TAGS     = grpcnotrace
COMPILE  = go build -trimpath -tags $(TAGS) -ldflags '$(LDFLAGS)'
# The module whose twilld it is: with the clouds' APIs, or "." without them.
AGENT   ?= clouds
LINT     = bin/golangci-lint
LINTVER  = v2.15.0
LAB     ?= --nodes 3 --pods 2
STORE   ?= file
RUN     ?= .
FAMILY  ?= ipv4
PROXY   ?= iptables
BACKEND ?= vxlan
POLICY  ?= false
FAST    ?= false
SUITE   ?= kubernetes
CONFORMANCE_kubernetes         := agnhost e2e.test ginkgo regression-issue-74839
CONFORMANCE_network-policy-api := agnhost
CONFORMANCE_cyclonus           := agnhost-small
# Packages, and where not their own tests alone are to notice, those that are. The tests of backend/ipsec are the microvm's.
MUTATE  ?= -n 10
MUTATED ?= ./backend=./backend,./backend/vxlan,./backend/hostgw,./backend/ipip,./backend/udp ./backend/hostgw ./backend/vxlan ./backend/ipip \
	./backend/alloc ./backend/udp ./backend/wireguard ./backend/extension ./netstate=./netstate,./netstate/fake ./netstate/firewall \
	./netstate/kernel ./subnet ./subnet/kube ./subnet/etcd ./plugin ./plugin/ipam=./plugin/ipam,./plugin ./plugin/wire=./plugin ./plugin/delegate=./plugin ./agent=./agent,./agent/daemon ./agent/pods ./agent/install
# The release before; until there is one, a commit.
TWILL_PREVIOUS ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo 80cbeba)
# How often two nodes of wireguard start together in the microvm, where each start takes seconds.
STARTS ?= 4
# What .ci/run leaves out, or runs for a shorter time.
NIGHTLY ?= test-cluster conformance:FAMILY=ipv4:PROXY=iptables conformance:FAMILY=ipv6:PROXY=nftables conformance:FAMILY=dual:PROXY=nftables \
	test-vm:STARTS=16 test-long test-upgrade day2 test-eval test-docker test-systemd test-clouds test-release test-arch soak chaos guest fuzz-peers fuzz

.PHONY: help build lab lab-allowed lab-programs lab-down cluster cluster-down test-cluster conformance cluster-tools cluster-test-tools test test-all test-vm test-vm-kernel test-vm-labs test-long test-upgrade day2 soak chaos drift causes guest fuzz-peers nightly mutate lint reference docs page screenshots recording kube-tools fuzz bench bench-datapath bench-engines bench-scale bench-herd krew release test-release test-arch image test-eval test-docker test-systemd test-clouds deb clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## Build the static binaries bin/twilld, bin/twill and bin/twillctl
	@echo 'build twilld twill twillctl'
	@cd $(AGENT) && GOWORK=off $(CURDIR)/tools/compile $(CURDIR)/bin/ ./cmd/twilld $(COMPILE)
	@GOWORK=off tools/compile bin/ './cmd/twill ./cmd/twillctl' $(COMPILE)

lab: lab-allowed lab-programs ## Bring up a cluster of network namespaces and print its ping matrix (STORE=file|etcd|kube, LAB='--nodes 5')
	$(if $(filter %etcd %kube,$(STORE) $(LAB)),tools/etcd/build etcd)
	$(if $(filter %kube,$(STORE) $(LAB)),tools/kube/build kube-apiserver $(if $(findstring --proxy,$(LAB)),kube-proxy))
	bin/twillctl lab up --store $(STORE) $(LAB)

lab-allowed:
	@lab/rootless/allowed

# Half of what build compiles is the clouds' SDKs, which few labs need. A bin/twilld that has them keeps them.
lab-programs:
	@go version -m bin/twilld 2>/dev/null | grep -q '/clouds/cmd/twilld$$' || without=AGENT=.; \
	$(MAKE) --no-print-directory build $$without

lab-down: lab-programs ## Remove that cluster
	bin/twillctl lab down

cluster: cluster-tools ## Bring up a real Kubernetes with Twill and print its pod-to-pod matrix (needs root)
	bin/cluster up

cluster-down: ## Remove that cluster
	bin/cluster down

test-cluster: cluster-test-tools bin/testreport ## Run the end-to-end tests (RUN=regexp) on real Kubernetes clusters (needs root)
	bin/testreport -tags e2e -count=1 -timeout 40m -v -run '$(RUN)' ./test/cluster/e2e
	bin/testreport -tags e2e -count=1 -timeout 40m -run '^TestFlannel/$(RUN)|^TestFlannel(Flags|SpreadMetrics|Transition|Earlier|Doctor)$$|^TestK3s$$|^TestOtherFlannels$$' ./test/e2e

conformance: cluster-tools ## Run Kubernetes' own network tests: FAMILY=ipv4|ipv6|dual PROXY=iptables|nftables BACKEND=vxlan|host-gw POLICY=true|kube-router FAST=true FOCUS= SKIP=; or SUITE=network-policy-api or cyclonus
	tools/kube/build $(CONFORMANCE_$(SUITE))
	$(if $(filter-out kubernetes,$(SUITE)),tools/$(SUITE)/build)
	$(if $(filter kube-router,$(POLICY)),tools/kube-router/build)
	test/conformance/rootfs bin/conformance/rootfs.tar
	CGO_ENABLED=0 go build -trimpath -o bin/conformance/agnhost ./test/conformance/agnhost
	go build -trimpath -o bin/conformance/run ./test/conformance
	bin/conformance/run -suite '$(SUITE)' -families '$(FAMILY)' -proxy-mode '$(PROXY)' -focus '$(FOCUS)' -skip '$(SKIP)' -backend '$(BACKEND)' -network-policy=$(POLICY) -fast-path=$(FAST)

cluster-tools:
	.ci/setup
	tools/etcd/build
	tools/kube/build kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl
	tools/containerd/build
	tools/coredns/build
	go build -trimpath -o bin/cluster ./test/cluster/cmd/cluster

cluster-test-tools: cluster-tools
	tools/flannel/build
	tools/helm/build
	tools/kube-router/build
	tools/prometheus/build

test: build ## Run the tests that need no program that takes long to build (needs root; PACKAGES='./agent ./test/e2e' runs some)
	.ci/test

test-all: build ## Run all tests: also those with a built kube-apiserver, kube-proxy and helm, with chromium, in a virtual machine, and the long ones
	.ci/test-all

test-vm: test-vm-kernel test-vm-labs ## Run kernel suites and small labs on Debian's kernel in a QEMU microvm: ipip, wireguard, ipsec, vxlan, tun, eBPF

test-vm-kernel:
	tools/vm/run './netstate/kernel:-test.skip=UnderChurn|TestQdiscs|TestTakes' './netstate/fastpath:-test.run=TestEdges|TestOuter|TestRoundTrip|TestDrift|TestCapabilities|TestRefresh|TestIdle|TestReusedPorts|TestCongestion|TestSegments/mtu' ./netstate/xfrm './netstate/filter:-test.run=TestElementsPrinted|TestAlteredExpressions|TestErrors|TestPackets|TestWrongPlans|TestReplacedChains|TestCheck' ./netstate/nflog ./backend/ipip ./backend/udp ./backend/wireguard:-starts=$(STARTS) ./backend/ipsec

test-vm-labs:
	tools/vm/run './test/e2e:-test.parallel=1:-test.run=TestCluster/(vxlan|hostgw|udp|wireguard)/dual/file|TestCluster/(ipip|ipsec)|TestTransition'

test-long: bin/testreport ## Run the CNI plugin's long tests: upstream's suites, a real containerd, CHURN (2000) pods with kills
	tools/containerd/build
	TWILL_CHURN=$(CHURN) bin/testreport -tags long -count=1 -timeout 90m -run '^TestLong|^TestKillAnywhereWithPorts$$' ./plugin

chaos: build bin/testreport ## Take away, three times in another order, what an agent shares with others, and delete routes meanwhile (needs root)
	for seed in $$(shuf -i 1-1000000 -n 3); do TWILL_CHAOS_SEED=$$seed bin/testreport -count=1 -timeout 20m -run '^Test(Resources|Intruders)$$' ./test/chaos || exit 1; done

soak: build kube-tools bin/testreport ## Break a lab at random for SOAK_TIME (20m); SOAK_SEED repeats a run. Wait for false alarms for REACH_TIME (5m). Then as make drift
	bin/testreport -tags soak -count=1 -timeout 0 -p 1 -v ./test/soak ./test/drift

drift: build bin/testreport ## Alter single attributes of what the agent keeps, for DRIFT_TIME (10m); DRIFT_SEED repeats a run
	bin/testreport -tags soak -count=1 -timeout 0 -v ./test/drift

causes: build bin/testreport ## Inject CAUSES_COUNT (1000) random causes of lost packets, and score the doctor; CAUSES_SEED repeats a run
	TWILL_BIN_DIR=$(CURDIR)/bin bin/testreport -tags soak -count=1 -timeout 0 -v ./test/causes

guest: build bin/testreport ## Draw hosts that Twill is a guest on, for GUEST_TIME (10m), and ask for the host's own life; GUEST_SEED repeats a run
	.ci/setup
	bin/testreport -tags soak -count=1 -timeout 0 -v ./test/guest

day2: kube-tools build bin/testreport ## Change clusters in all ways of day two under pings and connections, in an order that DAY2_SEED draws, and print what is lost (twenty minutes; DAY2='backends|kube' chooses)
	DAY2='$(or $(DAY2),.)' DAY2_SEED=$(or $(DAY2_SEED),$(shell shuf -i 1-1000000 -n 1)) TWILL_PREVIOUS=$(TWILL_PREVIOUS) bin/testreport -count=1 -timeout 60m -v ./test/day2

test-upgrade: build bin/testreport ## Replace agents by those of TWILL_PREVIOUS (a tag or commit) node by node, and back, under traffic (needs root)
	tools/etcd/build
	tools/kube/build kube-apiserver
	TWILL_PREVIOUS=$(TWILL_PREVIOUS) bin/testreport -tags e2e -count=1 -timeout 40m -v -run '^TestUpgrade$$' ./test/e2e

fuzz-peers: kube-tools bin/testreport ## Let one node write what it likes to the API server for PEERS_TIME (8m); PEERS_SEED repeats a run
	bin/testreport -tags soak -count=1 -timeout 0 -v ./test/peers

nightly: ## Run all that .ci/run leaves out, whatever fails, and say what passed, failed and ran nothing (hours; needs root)
	CHURN=$(or $(CHURN),50000) SOAK_TIME=$(or $(SOAK_TIME),2h) .ci/nightly $(NIGHTLY)

lint: ## Vet and check the style of all code, also of what is behind build tags
	@go version -m $(LINT) 2>/dev/null | grep -q 'golangci-lint/v2.$(LINTVER)' || { \
		echo "building golangci-lint $(LINTVER), once; this takes a few minutes"; \
		GOBIN=$(CURDIR)/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINTVER); }
	.ci/lint $(LINT)

mutate: kube-tools ## Break single lines of the packages where an error loses packets or addresses; tests must notice (MUTATE=-n 10)
	go build -o bin/mutate ./tools/mutate
	PATH=$$PATH:/usr/sbin:/sbin bin/mutate -min 90 $(MUTATE) $(MUTATED)

bin/testreport: $(wildcard tools/testreport/*.go)
	go build -o bin/testreport ./tools/testreport

reference: ## Write bin/reference, the pages that are made from the code: flags, commands, metrics, attributes
	rm -rf bin/reference && mkdir -p bin/reference
	TWILL_REFERENCE=$(CURDIR)/bin/reference go test -count=1 ./agent/daemon ./cmd/twillctl ./netstate/attributes -run '^Test.*Reference$$'

docs: reference ## Make a site of Documentation/ and bin/reference in bin/docs, and check its links, its Markdown and its words
	cd tools/docs && GOWORK=off go test -count=1 ./... && GOWORK=off go run . ../.. ../../bin/docs

page: ## Bundle the page of twillctl ui, ui/page, into ui/dist, which is committed
	cd tools/page && GOWORK=off go run . ../../ui/page ../../ui/dist

screenshots: build ## Take the pictures of the page that Documentation/ui shows, of a real lab (needs root)
	tools/axe/build
	rm -rf bin/screenshots && mkdir -p bin/screenshots
	cd test && TWILL_SCREENSHOTS=$(CURDIR)/bin/screenshots go test -count=1 -run '^TestLab$$' ./browser
	for f in bin/screenshots/*.png; do cp $$f Documentation/ui/; done

recording: build ## Record the session of a lab that README shows, as Documentation/recording.svg (needs root)
	go run ./tools/recording bin/twillctl tools/recording/doctor.txt Documentation/recording.svg

kube-tools: ## Build the etcd, kube-apiserver, kube-proxy, kubectl and helm that labs and test-all use, and unpack Debian's Prometheus, once
	tools/etcd/build
	tools/kube/build kube-apiserver kube-proxy kubectl kubeadm
	tools/helm/build
	tools/prometheus/build

fuzz: ## Fuzz every decoder of foreign bytes for FUZZTIME (30s) each
	.ci/fuzz

bench: build ## Run the benchmarks
	go test -run '^$$' -bench . -benchmem ./... ./clouds/... ./test/...

bench-datapath: build ## Compare pods with their nodes: throughput, round trips, connections, processor time (needs root; DATAPATH='-rounds 1 -seconds 1' takes a minute)
	.ci/setup
	go build -trimpath -o bin/datapath ./test/datapath
	bin/datapath $(DATAPATH)

bench-engines: cluster-test-tools ## Compare Twill's enforcement of NetworkPolicies with kube-router's, on a real cluster (needs root)
	go test -tags e2e -run '^$$' -bench PolicyEngines -benchtime 1x -timeout 40m ./test/cluster/e2e

bench-scale: ## Print what 1,000, 5,000 and 10,000 nodes cost an agent, in either store, and flannel's (needs root; SCALE='-sizes 5000 -rows leases -rounds 1' takes four minutes)
	tools/etcd/build
	tools/kube/build kube-apiserver
	tools/flannel/build
	cd test/scale && go test -v -tags scale -count=1 -run '^TestTable$$' -timeout 2h . $(SCALE)

bench-herd: ## Print what events cost the API server and the stores of all agents of a cluster (HERD='-herd 300 -herds leases')
	tools/etcd/build
	tools/kube/build kube-apiserver
	cd test/scale && go test -v -tags scale -count=1 -run '^TestHerdTable$$' -timeout 1h . $(HERD)

krew: ## Make the plugin kubectl twill for krew in bin/krew, archives and manifest: VERSION=v0.1.0
	tools/krew/build '$(VERSION)' bin/krew

release: ## Make all files of a release in bin/release, from what is committed: VERSION=v0.1.0, SIGN_KEY=FILE to sign them
	tools/release/build '$(VERSION)' bin/release

test-release: bin/testreport ## Make a release of the working tree twice, and let skopeo, helm and openssl judge it
	.ci/setup-release
	tools/helm/build
	TWILL_ALL=1 bin/testreport -tags release -count=1 -timeout 60m ./test/release

test-arch: ## Run the programs and unit tests of other architectures (ARCHITECTURES=arm64 …) under qemu's emulators
	.ci/arch

image: ## Build the container image from the Dockerfile with buildah
	epoch=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}; \
	buildah bud --build-arg VERSION=$(VERSION) --build-arg SOURCE_DATE_EPOCH=$$epoch --timestamp $$epoch -t twill:$(VERSION) .

test-docker: build ## Run Debian's dockerd on two lab nodes whose network is Twill's (needs root)
	test/docker/run

test-systemd: build bin/testreport ## Boot a Debian machine with Docker, etcd and the package: Docker lives through all that happens to Twill (needs root)
	test/systemd/rootfs bin/systemd/rootfs.tar
	bin/testreport -tags e2e -count=1 -timeout 40m -p 1 -v ./test/systemd

test-eval: build bin/testreport ## Inject each fault into a lab of each backend and family, and ask the doctor; make test does it in one of them
	TWILL_ALL=1 bin/testreport -count=1 -timeout 60m ./test/eval

test-clouds: bin/testreport ## Run the judges of cloud backends that take minutes to compile
	bin/testreport -tags gcemock -count=1 ./test/clouds/gce/mock

deb: build ## Make a Debian package of the binaries, their manual pages and the systemd units in deploy/systemd
	deploy/debian/build bin $(VERSION)

clean: ## Remove what the build made
	rm -rf bin
