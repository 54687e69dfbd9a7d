#!/bin/sh
# Builds the pool and programs with ThreadSanitizer and runs them. Usage: tests/native/run_tsan.sh [build folder]
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
csrc=$root/src/kbench/kernels/cpu/csrc
build=${1:-$(mktemp -d)}
flags="-std=c++17 -O1 -g -fsanitize=thread -I$csrc"
cd "$build"
for source in "$root"/tests/native/pool_stress.cpp "$csrc"/*.cpp "$csrc"/scalar/*.cpp "$csrc"/avx2/*.cpp "$csrc"/avx512_vnni/*.cpp; do
  isa=$(basename "$(dirname "$source")")
  object=$isa.$(basename "$source" .cpp).o
  case $source in
    */bindings*) continue ;;
    */avx2/*) extra="-mavx2 -mfma -mf16c -mbmi2" ;;
    */avx512_vnni/*) extra="-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c -mbmi2" ;;
    *) extra="-DNDEBUG" ;;  # never empty: xargs joins lines that end in a blank
  esac
  [ "$object" -nt "$source" ] || echo "$source $object $extra"
done | xargs -r -P 2 -L 1 sh -c 'source=$1 object=$2; shift 2; ${CXX:-g++} '"$flags"' "$@" -c "$source" -o "$object"' sh
${CXX:-g++} -fsanitize=thread ./*.o -o pool_stress -pthread
TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" ./pool_stress
