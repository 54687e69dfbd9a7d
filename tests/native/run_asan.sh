#!/bin/sh
# Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer and runs the tests of the kernels on it.
# Usage: tests/native/run_asan.sh [build folder [pytest arguments]]
# The Python on the path needs nanobind, cmake, ninja and what the tests need. The installed kbench is not touched.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${1:-$(mktemp -d)}
[ $# -eq 0 ] || shift
cxx=${CXX:-g++}
mkdir -p "$build"
build=$(cd "$build" && pwd)
# CMakeLists.txt asks for -O3, with which instrumented kernels take minutes a file to compile: the last -O counts.
printf '#!/bin/sh\nexec "$@" -O1\n' > "$build/at_o1"
chmod +x "$build/at_o1"
cmake -S "$root" -B "$build" -G Ninja -DPython_EXECUTABLE="$(command -v python)" -DCMAKE_CXX_COMPILER="$cxx" \
  -DCMAKE_CXX_COMPILER_LAUNCHER="$build/at_o1" -DCMAKE_BUILD_TYPE=None \
  -DCMAKE_CXX_FLAGS="-g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=undefined"
cmake --build "$build" -j 2
rm -rf "$build/site"
mkdir "$build/site"
cp -R "$root/src/kbench" "$build/site/"
rm -f "$build"/site/kbench/kernels/cpu/_native*.so
cp "$build"/_native*.so "$build/site/kbench/kernels/cpu/"
[ $# -gt 0 ] || set -- "$root/tests/kernels"
# Python itself is not instrumented: the sanitizer is preloaded, and libstdc++ with it, whose throw it intercepts when
# it starts. What the interpreter never frees is no leak of ours.
cd "$root"
LD_PRELOAD="$("$cxx" -print-file-name=libasan.so) $("$cxx" -print-file-name=libstdc++.so.6)" \
  ASAN_OPTIONS="detect_leaks=0:${ASAN_OPTIONS:-}" UBSAN_OPTIONS="print_stacktrace=1:${UBSAN_OPTIONS:-}" \
  PYTHONPATH="$build/site" python -m pytest -q -s -p no:cacheprovider "$@"
