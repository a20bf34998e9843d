#!/usr/bin/env bash
# Correctness first, then every GPU row of the design's budget, in parts of less than ten minutes each.
#   benchmarks/gpu_all.sh              every part, one after the other
#   benchmarks/gpu_all.sh tests host   these parts
# PYTHON picks the interpreter; KVARENA_RESULTS another results file; PEER_SITE a folder (or .tgz) where the peer is importable.
set -u
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
export PYTHONUNBUFFERED=1 PYTHONPATH=.${PYTHONPATH:+:$PYTHONPATH}
if [ -n "${PEER_SITE:-}" ]; then
    if [ -f "$PEER_SITE" ]; then
        mkdir -p /tmp/peer_site && tar xzf "$PEER_SITE" -C /tmp/peer_site && PEER_SITE=/tmp/peer_site
    fi
    export PYTHONPATH=$PYTHONPATH:$PEER_SITE
fi
failed=0
run() { echo "== $*"; "$@" || { failed=1; echo "== FAILED: $*"; }; }

part_tests() {
    run timeout 300 "$PYTHON" -m pytest -q tests/test_kernels.py tests/test_executor.py tests/test_shell_arena.py
    run timeout 280 "$PYTHON" -m pytest -q tests/gpu --deselect tests/gpu/test_gpu_executor.py::test_a_hundred_gibibytes_survive_ten_thousand_steps
}
part_big() { run timeout 580 "$PYTHON" -m pytest -q tests/gpu/test_gpu_executor.py -k hundred; }
part_moves() { run timeout 400 "$PYTHON" -m pytest -q -s benchmarks/gpu_moves.py benchmarks/gpu_translate.py; }
part_sweep() { run timeout 300 "$PYTHON" -m benchmarks.gpu_moves --sweep; }
part_host() {
    run timeout 300 "$PYTHON" -m pytest -q -s benchmarks/gpu_step.py
    run timeout 280 "$PYTHON" -m pytest -q -s benchmarks/gpu_alloc.py
}
part_sanitizer() {
    for tool in memcheck racecheck; do
        run timeout 280 compute-sanitizer --tool "$tool" --error-exitcode 9 "$PYTHON" -m pytest -q -x tests/test_kernels.py
    done
}
for part in "${@:-tests big moves host sanitizer}"; do
    for each in $part; do "part_$each"; done
done
exit $failed
