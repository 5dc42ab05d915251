#!/usr/bin/env bash
# Installs what specdec needs on Debian 12 and prints only what it does. It is written for Ubuntu 24.04, too, but untested there.
# A step is skipped if its result already exists. Downloads and compiled dependencies live outside the clone,
# under ${XDG_CACHE_HOME:-~/.cache}/specdec, so that a second clone or a wiped build folder does not fetch them again.
#   cmake/setup.sh          installs
#   cmake/setup.sh --env    prints the shell variables that the build needs, and installs nothing
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/specdec}
lock=$root/cmake/requirements.txt
venv=$cache/venv-$(sha256sum "$lock" | cut -c1-12)

say() { printf 'setup: %s\n' "$*" >&2; }

packages=(g++ make pkg-config python3-venv ca-certificates
  libboost1.81-dev libcli11-dev nlohmann-json3-dev libgtest-dev libspdlog-dev libtomlplusplus-dev
  libsqlite3-dev libsqlitecpp-dev libre2-dev libzstd-dev zlib1g-dev libsimdjson-dev libxxhash-dev libssl-dev
  libcurl4-openssl-dev prometheus-cpp-dev
  clang-19 libclang-rt-19-dev ccache mold)

install_packages() {
  local missing=()
  for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  # Ubuntu 24.04 ships another Boost minor version under the unversioned name.
  if ! apt-cache show libboost1.81-dev >/dev/null 2>&1; then missing=("${missing[@]/libboost1.81-dev/libboost-dev}"); fi
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo
  say "apt: ${missing[*]}"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

rust_is_recent() { command -v cargo >/dev/null && [ "$(printf '%s\n1.88\n' "$(rustc --version | cut -d' ' -f2)" | sort -V | head -1)" = 1.88 ]; }
install_rust() {
  [ -x "$HOME/.cargo/bin/cargo" ] && export PATH=$HOME/.cargo/bin:$PATH
  rust_is_recent && return
  local sudo=; [ "$(id -u)" -eq 0 ] || sudo=sudo
  say "apt: rustc-web cargo-web (Rust >= 1.88)"
  $sudo apt-get update -qq
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends rustc-web cargo-web >/dev/null
  rust_is_recent || { say "no Rust >= 1.88 found: install one from https://rustup.rs and run this again"; exit 1; }
}

# Adds the names that CMake looks for and the wheels' CUDA folder lacks: unversioned lib*.so and lib64.
complete_cuda_root() {
  local cuda=$1 lib base
  [ -e "$cuda/lib64" ] || ln -s lib "$cuda/lib64"
  for lib in "$cuda"/lib/lib*.so.*; do
    [ -e "$lib" ] || continue
    base=${lib%%.so.*}.so
    [ -e "$base" ] || ln -s "$(basename "$lib")" "$base"
  done
}

install_wheels() {
  [ -e "$venv/.complete" ] && return
  say "python wheels (torch with CUDA 13, nvcc, cmake; 4.6 GB, once): $venv"
  rm -rf "$venv"; mkdir -p "$cache"
  local python=/usr/bin/python3; [ -x "$python" ] || python=python3
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$lock"
  complete_cuda_root "$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13)"
  touch "$venv/.complete"
}

print_env() {
  local site; site=$(echo "$venv"/lib/python3*/site-packages)
  cat <<EOF
export PATH="$venv/bin:$HOME/.cargo/bin:\$PATH"
export SPECDEC_PYTHON="$venv/bin/python"
export CUDA_HOME="\${CUDA_HOME:-$site/nvidia/cu13}" CUDACXX="\${CUDACXX:-$site/nvidia/cu13/bin/nvcc}"
export CUDAToolkit_ROOT="\$CUDA_HOME" CUDA_TOOLKIT_ROOT_DIR="\$CUDA_HOME"
export Torch_DIR="\${Torch_DIR:-$site/torch/share/cmake/Torch}"
export CARGO_TARGET_DIR="\${CARGO_TARGET_DIR:-$cache/cargo}"
export CCACHE_DIR="\${CCACHE_DIR:-$cache/ccache}" CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_NOHASHDIR=1 CCACHE_BASEDIR="$root"
EOF
}

if [ "${1:-}" = --env ]; then print_env; exit; fi
install_packages
install_rust
install_wheels
