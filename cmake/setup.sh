#!/usr/bin/env bash
# Installs what specdec needs on Debian 12 and prints only what it does. It is written for Ubuntu 24.04, too, but untested there.
# A step is skipped if its result already exists. Downloads and compiled dependencies live outside the clone,
# under ${XDG_CACHE_HOME:-~/.cache}/specdec, so that a second clone or a wiped build folder does not fetch them again.
#   cmake/setup.sh            installs
#   cmake/setup.sh --aarch64  installs that and what the preset `aarch64` needs to build for 64-bit ARM
#   cmake/setup.sh --env      prints the shell variables that the build needs, and installs nothing
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${SPECDEC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/specdec}
lock=$root/cmake/requirements.txt
venv=$cache/venv-$(sha256sum "$lock" | cut -c1-12)
packaging_lock=$root/cmake/packaging.txt
packaging=$cache/packaging-$(sha256sum "$packaging_lock" | cut -c1-12)

say() { printf 'setup: %s\n' "$*" >&2; }

# Debian 12's unversioned package is Boost 1.74, which is too old.
boost=libboost-dev
if grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release; then boost=libboost1.81-dev; fi
libraries=("$boost" libcli11-dev nlohmann-json3-dev libgtest-dev libspdlog-dev libtomlplusplus-dev
  libsqlite3-dev libsqlitecpp-dev libre2-dev libzstd-dev zlib1g-dev libsimdjson-dev libxxhash-dev libssl-dev
  libcurl4-openssl-dev prometheus-cpp-dev)
packages=(g++ make pkg-config python3-venv ca-certificates "${libraries[@]}" libgloo-dev clang-19 libclang-rt-19-dev ccache mold)
cross_packages=(g++-12-aarch64-linux-gnu qemu-user-static debian-archive-keyring)
sysroot=$cache/sysroot-arm64-$(echo "${libraries[@]}" | sha256sum | cut -c1-12)

install_packages() {
  local missing=()
  for p in "$@"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
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

install_rust_target() {
  local target=aarch64-unknown-linux-gnu
  [ -e "$(rustc --print sysroot)/lib/rustlib/$target/lib" ] && return
  if ! command -v rustup >/dev/null; then
    say "$(command -v rustc) has no standard library for $target: install Rust from https://rustup.rs, or unpack Debian's" \
      "libstd-rust-web-dev:arm64 of the same version into $(rustc --print sysroot), and run this again"
    exit 1
  fi
  say "rustup target add $target"
  rustup target add "$target"
}

install_sysroot() {
  [ -e "$sysroot/.complete" ] && return
  say "Debian's libraries for arm64 (351 MB, once): $sysroot"
  mkdir -p "$cache"
  "$root/cmake/sysroot.sh" "$sysroot" "${libraries[@]}"
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

# Installs the wheels of a lock file into a new environment.
install_locked() {
  local lock=$1 venv=$2
  rm -rf "$venv"; mkdir -p "$cache"
  local python=/usr/bin/python3; [ -x "$python" ] || python=python3
  "$python" -m venv "$venv"
  "$venv/bin/pip" install --quiet --no-compile --disable-pip-version-check --require-hashes --only-binary :all: -r "$lock"
}

# Compiles the Rust half as the build will, into the same folder, on the core that pip leaves free: it needs no wheel.
# If this fails, the build tries again and says why.
compile_rust() {
  (eval "$(print_env)"; cargo build --release --locked --quiet --manifest-path "$root/rust/Cargo.toml") >/dev/null 2>&1 || true
}

install_wheels() {
  [ -e "$venv/.complete" ] && return
  say "python wheels (torch with CUDA 13, nvcc, cmake; 4.6 GB, once): $venv"
  if [ -e "$root/rust/src" ]; then compile_rust & fi
  install_locked "$lock" "$venv"
  wait
  complete_cuda_root "$(echo "$venv"/lib/python3*/site-packages/nvidia/cu13)"
  touch "$venv/.complete"
}

install_packaging() {
  [ -e "$packaging/.complete" ] && return
  say "python wheels that make wheels (20 MB, once): $packaging"
  install_locked "$packaging_lock" "$packaging"
  touch "$packaging/.complete"
}

print_env() {
  local site; site=$(echo "$venv"/lib/python3*/site-packages)
  cat <<EOF
export PATH="$venv/bin:$HOME/.cargo/bin:\$PATH"
export SPECDEC_PYTHON="$venv/bin/python" SPECDEC_PACKAGING_PYTHON="$packaging/bin/python"
export CUDA_HOME="\${CUDA_HOME:-$site/nvidia/cu13}" CUDACXX="\${CUDACXX:-$site/nvidia/cu13/bin/nvcc}"
export CUDAToolkit_ROOT="\$CUDA_HOME" CUDA_TOOLKIT_ROOT_DIR="\$CUDA_HOME"
export Torch_DIR="\${Torch_DIR:-$site/torch/share/cmake/Torch}"
export CARGO_TARGET_DIR="\${CARGO_TARGET_DIR:-$cache/cargo}"
export SPECDEC_SYSROOT_AARCH64="$sysroot"
export CCACHE_DIR="\${CCACHE_DIR:-$cache/ccache}" CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_NOHASHDIR=1 CCACHE_BASEDIR="$root"
EOF
}

if [ "${1:-}" = --env ]; then print_env; exit; fi
install_packages "${packages[@]}"
install_rust
install_wheels
install_packaging
if [ "${1:-}" = --aarch64 ]; then
  install_packages "${cross_packages[@]}"
  install_rust_target
  install_sysroot
fi
