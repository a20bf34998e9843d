# Every target makes what it needs; `make replay` on a fresh clone is enough to see the arena at work.
PYTHON ?= python3
BIN := .venv/bin
OUT ?= out
ARGS ?=
JOBS ?= 2

.PHONY: help venv replay mix test check bench evidence mutation serve-demo waste gpu-all gpu-serve clean

help:
	@echo "make replay      serve a real trace from one arena, every byte checked, against today's splits"
	@echo "make mix         the shifting mix, all policies, full model size, no buffer"
	@echo "make test        all tests            make check      ruff, mypy --strict, import-linter"
	@echo "make evidence    proofs, small worlds, machines, mutants"
	@echo "make mutation    mutation testing of the core, in parts"
	@echo "make bench       host benchmarks      make waste      the table of all models x policies"
	@echo "make serve-demo  a transformers model served from the arena"
	@echo "make gpu-all     kernel tests and benchmarks on a GPU      make gpu-serve  captured decode experiment"

# Two stamps: running needs far fewer packages than testing. They are remade when pins or ranges change.
.venv/.runtime: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/.dev: .venv/.runtime
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e ".[dev,transformers,prometheus]"
	touch $@

venv: .venv/.dev

replay: .venv/.runtime
	$(BIN)/kvarena replay --verify --out $(OUT)/replay $(ARGS)

mix: .venv/.runtime
	$(BIN)/kvarena replay --model Qwen/Qwen3-Next-80B-A3B-Instruct --memory 40GiB --trace mix --device none \
	    --policy all --out $(OUT)/mix $(ARGS)

test: .venv/.dev
	$(BIN)/python -m pytest -q -n $(JOBS) -m "not slow" $(ARGS)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports

bench: .venv/.dev
	mkdir -p $(OUT)
	$(BIN)/python -m pytest -q benchmarks --benchmark-json=$(OUT)/bench.json $(ARGS)
	$(BIN)/python -m benchmarks.cpu_report $(OUT)/bench.json

evidence: .venv/.dev
	$(BIN)/kvarena evidence $(ARGS)

mutation: .venv/.dev
	$(BIN)/python -m invariants.mutation $(ARGS)

serve-demo: .venv/.dev
	$(BIN)/kvarena serve-demo $(ARGS)

waste: .venv/.runtime
	$(BIN)/kvarena waste $(ARGS)

# On a GPU machine, with its own python3; in parts of less than ten minutes each.
gpu-all:
	PYTHON=$(PYTHON) bash benchmarks/gpu_all.sh $(ARGS)

gpu-serve:
	$(PYTHON) -m benchmarks.gpu_serve $(ARGS)

clean:
	rm -rf $(OUT) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
