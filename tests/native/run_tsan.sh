#!/bin/sh
# Builds the pool and programs with ThreadSanitizer and runs them. Usage: tests/native/run_tsan.sh [build folder]
# The Python on the path needs nanobind, cmake and ninja.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$(mktemp -d)}
cxx=${CXX:-g++}
mkdir -p "$build"
build=$(cd "$build" && pwd)
# CMakeLists.txt asks for -O3, with which instrumented kernels take minutes a file to compile: the last -O counts.
printf '#!/bin/sh\nexec "$@" -O1\n' > "$build/at_o1"
chmod +x "$build/at_o1"
cmake -S "$root" -B "$build" -G Ninja -DPython_EXECUTABLE="$(command -v python)" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$build/at_o1" -DCMAKE_BUILD_TYPE=None -DCMAKE_CXX_FLAGS="-g1 -fsanitize=thread"
cmake --build "$build" -j 2 --target kbench_kernels
"$cxx" -std=c++17 -O1 -g -fsanitize=thread -I"$root/src/kbench/kernels/cpu/csrc" "$root/tests/native/pool_stress.cpp" \
  "$build/libkbench_kernels.a" -o "$build/pool_stress" -pthread
TSAN_OPTIONS="halt_on_error=1 ${TSAN_OPTIONS:-}" "$build/pool_stress"
