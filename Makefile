# Every target has a ## line; `make` prints them. CI calls only make.
GO      ?= go
BIN     := bin
# Where the tools unpack servers that Debian stable does not have; ignored by git.
CACHE   := $(CURDIR)/.cache
STATICCHECK := $(GO) run honnef.co/go/tools/cmd/staticcheck@v0.8.2

MYSQLD    := $(CACHE)/mysql/mysqld
KAFKA_DIR := $(CACHE)/kafka
# Tests that mostly wait run beside each other, more of them than there are cores.
GOTEST    := $(GO) test -race -timeout 30m -parallel 6
# The suites that run whole processes, tests/, are mostly the race detector's
# own time: make test runs them with it, other flavours and brokers without.
GOLIFE    := $(GO) test -count=1 -timeout 30m -parallel 6
ON_MYSQL  := CELLOG_TEST_FLAVOUR=mysql CELLOG_MYSQLD=$(MYSQLD)
ON_KAFKA  := CELLOG_TEST_KAFKA=real CELLOG_KAFKA_DIR=$(KAFKA_DIR)

.PHONY: help setup setup-all build demo test lint fmt bench rig integration integration-stages integration-processes interop life chaos chaos-ci chaos-pairs chaos-planted soak soak-big mysql kafka ci clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## Install what make test and make demo need (a MariaDB or MySQL server and a C compiler, by apt).
	@tools/install-deps.sh server compiler

setup-all: ## Install what CI needs too: Java and Maven for Apache Kafka, kcat, Python clients, libfaketime.
	@tools/install-deps.sh server compiler kafka clients chaos

build: ## Build bin/cellog.
	$(GO) build -trimpath -o $(BIN)/cellog ./cmd/cellog

demo: setup build ## Run a city in fast motion for a minute, then verify and settle the books.
	$(BIN)/cellog demo --for 60s

test: setup ## Run all tests with the race detector (private MariaDB servers, embedded broker).
	$(GOTEST) -count=1 $$($(GO) list ./tests/... | grep -v /chaos) $$($(GO) list ./... | grep -v /tests/)  # the longest first
	$(GO) test -count=1 -timeout 30m -run TestWatermillSuite ./triggers

lint: ## Check formatting, go vet, staticcheck and the shell scripts' syntax.
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt -w these:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(STATICCHECK) ./...
	@for f in $$(git ls-files 'tools/*.sh' .ci/run); do bash -n $$f || exit 1; done

fmt: ## Format all Go files.
	gofmt -w $$(git ls-files '*.go')

bench: setup ## Run the benchmarks that back docs/benchmarks.md.
	$(GO) test -run '^$$' -bench . -benchmem -timeout 60m ./...

rig: mysql ## Measure our tailer beside Debezium on an idle machine (docs/rig.md; CELLOG_RIG_CELLS=200000, CELLOG_RIG_RUNS=1).
	tools/install-deps.sh kafka && tools/get-kafka.sh $(KAFKA_DIR) && tools/get-debezium.sh $(CACHE)/debezium
	CELLOG_RIG=$${CELLOG_RIG:-all} CELLOG_RIG_OUT=$${CELLOG_RIG_OUT-$(CURDIR)/bench/rig} CELLOG_DEBEZIUM_DIR=$(CACHE)/debezium \
	  $(ON_MYSQL) $(ON_KAFKA) \
	  $(GO) test ./bench/rig -run '^$$' -bench Rig -benchtime 1x -timeout 12h

mysql: ## Unpack a MySQL server into .cache/mysql.
	@test -x $(MYSQLD) || tools/get-mysql.sh $(CACHE)/mysql

kafka: ## Fetch an Apache Kafka broker into .cache/kafka.
	@test -x $(KAFKA_DIR)/broker || { tools/install-deps.sh kafka && tools/get-kafka.sh $(KAFKA_DIR); }

integration: mysql kafka ## Run the suites again on MySQL and on Apache Kafka: the two below, side by side.
	$(MAKE) --no-print-directory -j2 --output-sync=line integration-stages integration-processes

integration-stages: mysql kafka ## Run the storage, cdc, index and promotion suites on MySQL, and those of the stream on Apache Kafka.
	$(ON_MYSQL) $(GOTEST) -p 1 -count=1 ./storage/... ./cdc/... ./indexer/... ./internal/doctor
	$(ON_MYSQL) $(GOLIFE) -skip 'AtEachStep|FinishesMoves|MoveAndPromotions|TwoMovers' ./internal/app  # those take minutes: make soak
	$(ON_KAFKA) $(GOTEST) -p 1 -count=1 ./internal/kafka/... ./cdc/... ./triggers/...
	$(ON_KAFKA) $(GOLIFE) -run TestWatermillSuite ./triggers

integration-processes: mysql kafka ## Run the suites of whole processes on MySQL and on Apache Kafka.
	$(ON_MYSQL) $(GOLIFE) -p 1 $$($(GO) list ./tests/... | grep -v /chaos)
	$(ON_KAFKA) $(GOLIFE) -p 1 -skip 'MoveUnderLoad|ErrantCells' ./tests/tail/... ./tests/life/...

interop: kafka ## Read our topics with kcat, Python and Java clients, on the embedded broker and on Apache Kafka.
	@tools/install-deps.sh clients
	$(GO) test -tags interop -count=1 -timeout 15m -v ./tests/interop
	$(ON_KAFKA) $(GO) test -tags interop -count=1 -timeout 15m -v ./tests/interop

life: setup ## Run only the tests that take cells from HTTP to the index, with crashes in between.
	$(GOTEST) -count=1 -v ./tests/life/...

chaos: setup ## Inject faults for DURATION seconds (default 120) from SEED, and check every answer.
	CELLOG_SEED=$(SEED) CELLOG_CHAOS_SECONDS=$(or $(DURATION),120) $(GOLIFE) -v -run TestChaos ./tests/chaos

chaos-ci: setup mysql kafka ## Two minutes of faults on MariaDB and the embedded broker, and on MySQL and Apache Kafka; beside them planted faults.
	$(MAKE) --no-print-directory -j2 --output-sync=line chaos-planted chaos-pairs

chaos-pairs: setup mysql kafka ## Two minutes of faults on each pair of server and broker.
	CELLOG_CHAOS_SECONDS=120 $(GOLIFE) -v -run TestChaos ./tests/chaos
	$(ON_MYSQL) $(ON_KAFKA) CELLOG_CHAOS_SECONDS=120 $(GOLIFE) -v -run TestChaos ./tests/chaos

chaos-planted: setup ## Faults that the checker of chaos must find, and its other tests.
	$(GOLIFE) -v -skip TestChaos ./tests/chaos

soak: setup ## Run the seeded crash and order suites again and again (SOAK_MINUTES=30); results go to docs/soak.tsv.
	tools/soak.sh $${SOAK_MINUTES:-30}

soak-big: setup ## Carry one transaction of ROWS rows (default 10 million; takes long) from the binlog to Kafka in little memory.
	CELLOG_TEST_BIG_ROWS=$(or $(ROWS),10000000) $(GO) test -count=1 -timeout 90m -v -run TestTransactionOfMillionsOfRows ./tests/tail

ci: ## What CI runs.
	.ci/run

clean: ## Remove build results; unpacked servers in .cache stay.
	rm -rf $(BIN)
