# Sets the flags of every target: warnings, hardening and sanitizers. Uses ccache and mold where they are installed.
add_library(specdec_flags INTERFACE)
target_compile_options(specdec_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wno-unused-parameter;-fno-math-errno>)
# Warnings are errors only with the compilers that this project is tested with. Other compilers have warnings of their
# own, which must not stop a build.
if(SPECDEC_WERROR)
  target_compile_options(specdec_flags INTERFACE
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<OR:$<AND:$<CXX_COMPILER_ID:GNU>,$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>>,$<CXX_COMPILER_ID:Clang>>>:-Werror>)
endif()
# GCC fuses a multiplication and an addition if the instruction set has such an operation: every aarch64 has it, x86-64
# only since AVX2. Without fusing, results do not depend on the machine.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  # -Wno-psabi: silences GCC's note that the ABI for pairs of numbers, which Boost.Math passes, has changed.
  target_compile_options(specdec_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off;-Wno-psabi>)
endif()
target_compile_definitions(specdec_flags INTERFACE $<$<CONFIG:Debug>:_GLIBCXX_ASSERTIONS>)
if(NOT SPECDEC_SANITIZE)
  set(branch_protection -fcf-protection)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    set(branch_protection -mbranch-protection=standard)
  endif()
  target_compile_options(specdec_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong;-fstack-clash-protection;${branch_protection}>)
  target_compile_options(specdec_flags INTERFACE $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<NOT:$<CONFIG:Debug>>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>)
endif()
target_include_directories(specdec_flags INTERFACE ${CMAKE_SOURCE_DIR})
if(SPECDEC_SANITIZE)
  target_compile_options(specdec_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${SPECDEC_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=undefined>)
  target_compile_definitions(specdec_flags INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(specdec_flags INTERFACE -fsanitize=${SPECDEC_SANITIZE})
endif()
if(SPECDEC_FUZZ)  # instruments every file; only tests/fuzz links libFuzzer's main()
  target_compile_options(specdec_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
# mold 1.10 starts the read-only relocations at .tbss. Without separate-code, a file in which .tbss falls on the last bytes
# of a page names a page there that is not mapped, and the loader refuses it ("cannot apply additional memory protection").
target_link_options(specdec_flags INTERFACE -Wl,-z,relro,-z,now,-z,separate-code)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
include(CheckLinkerFlag)  # a cross compiler does not find the mold of the build machine
check_linker_flag(CXX -fuse-ld=mold SPECDEC_MOLD)
if(SPECDEC_MOLD)
  target_link_options(specdec_flags INTERFACE -fuse-ld=mold)
endif()
