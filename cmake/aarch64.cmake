# Toolchain file of the preset `aarch64`: Debian's cross compiler, and the packages of Debian 12 for arm64 that
# cmake/setup.sh --aarch64 unpacked. Built programs run under qemu.
if(NOT DEFINED ENV{SPECDEC_SYSROOT_AARCH64} OR NOT EXISTS $ENV{SPECDEC_SYSROOT_AARCH64}/.complete)
  message(FATAL_ERROR "There is no sysroot '$ENV{SPECDEC_SYSROOT_AARCH64}': make it by cmake/setup.sh --aarch64, and "
    "build in the environment of cmake/setup.sh --env (`make build PRESET=aarch64` does both)")
endif()
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_SYSROOT $ENV{SPECDEC_SYSROOT_AARCH64})
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc-12)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++-12)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${CMAKE_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
# Variables for pkg-config, which CMake's own modules and the build scripts of Rust crates call.
set(SPECDEC_PKG_CONFIG PKG_CONFIG_ALLOW_CROSS=1 PKG_CONFIG_SYSROOT_DIR=${CMAKE_SYSROOT}
  PKG_CONFIG_LIBDIR=${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)
foreach(variable ${SPECDEC_PKG_CONFIG})
  string(REGEX MATCH "^([^=]+)=(.*)$" variable ${variable})
  set(ENV{${CMAKE_MATCH_1}} ${CMAKE_MATCH_2})
endforeach()
