#!/usr/bin/env bash
# build.sh SANITIZERS OUTPUT: compiles the runtime with its stress under the given sanitizers.
set -euo pipefail
cd "$(dirname "$0")/../.."
"${CXX:-g++}" -std=c++20 -O1 -g "-fsanitize=$1" -fno-sanitize-recover=all -Icsrc \
	tests/native/stress.cpp csrc/runtime/*.cpp csrc/drivers/*.cpp csrc/drivers/*/*.cpp -o "$2" -ldl -lpthread
