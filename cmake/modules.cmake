# specdec_module(NAME sources… [TORCH] [DEPS targets…]): makes one static library per folder of the architecture.
# specdec_test(NAME sources… [TORCH] [LABELS …] [DEPS targets…]): makes one GoogleTest binary and its CTest entry.
# specdec_precompile: precompiles the headers that nearly every file needs, once for each kind of target: `plain`,
# `test` (with GoogleTest), `torch` (with ATen), `torch_test` (with both). The fuzz build has no precompiled headers,
# because it compiles few files.
set(SPECDEC_COMMON_HEADERS <nlohmann/json.hpp> <algorithm> <filesystem> <functional> <map> <memory> <string> <vector>)
function(specdec_precompile kind)
  if(SPECDEC_FUZZ)
    return()
  endif()
  cmake_parse_arguments(P "" "" "HEADERS;OPTIONS;DEPS" ${ARGN})
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/${kind}_pch.cpp CONTENT "")  # not rewritten by a second configuration
  add_library(specdec_${kind}_pch OBJECT ${CMAKE_BINARY_DIR}/${kind}_pch.cpp)
  target_link_libraries(specdec_${kind}_pch PUBLIC specdec_flags ${P_DEPS})
  target_compile_options(specdec_${kind}_pch PRIVATE ${P_OPTIONS})
  target_precompile_headers(specdec_${kind}_pch PRIVATE ${SPECDEC_COMMON_HEADERS} ${P_HEADERS})
endfunction()

function(specdec_reuse_headers target kind)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL EXECUTABLE)  # -fPIE would make the precompiled header (-fPIC) unusable
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE -fPIC)
  endif()
  if(TARGET specdec_${kind}_pch)
    target_precompile_headers(${target} REUSE_FROM specdec_${kind}_pch)
  endif()
endfunction()

# With SPECDEC_UNITY up to four files of a target form one translation unit, so that templates of headers are compiled
# only once for all of them. The files of a unit also share one anonymous namespace. The units have names relative to
# the build folder, so that ccache finds them in another clone.
function(specdec_unite target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${SPECDEC_UNITY} UNITY_BUILD_BATCH_SIZE 4 UNITY_BUILD_RELOCATABLE ON)
endfunction()

function(specdec_torch_target target)
  target_link_libraries(${target} PUBLIC specdec_torch)
  specdec_reuse_headers(${target} torch)
endfunction()

function(specdec_module name)
  cmake_parse_arguments(M "TORCH" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${M_SOURCES} ${M_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PUBLIC specdec_flags ${M_DEPS})
  specdec_unite(${name})
  if(M_TORCH)
    specdec_torch_target(${name})
  else()
    specdec_reuse_headers(${name} plain)
  endif()
endfunction()

function(specdec_test name)
  cmake_parse_arguments(M "TORCH" "TIMEOUT" "SOURCES;LABELS;DEPS" ${ARGN})
  if(NOT BUILD_TESTING OR (M_TORCH AND NOT SPECDEC_TORCH))
    return()
  endif()
  add_executable(${name} ${M_SOURCES} ${M_UNPARSED_ARGUMENTS})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  specdec_unite(${name})
  # GoogleTest's macros contain an else. Tests may leave members out of an initialiser; these get their default values.
  target_compile_options(${name} PRIVATE -Wno-dangling-else -Wno-missing-field-initializers)
  target_link_libraries(${name} PRIVATE ${M_DEPS} specdec_flags specdec_source_folder GTest::gtest GTest::gtest_main)
  target_compile_options(${name} PRIVATE ${SPECDEC_TEST_OPTIONS})
  if(M_TORCH)
    target_link_libraries(${name} PRIVATE specdec_torch)
    specdec_reuse_headers(${name} torch_test)
  else()
    specdec_reuse_headers(${name} test)
  endif()
  add_test(NAME ${name} COMMAND ${name})
  if(NOT M_TIMEOUT)
    set(M_TIMEOUT 600)
  endif()
  if(SPECDEC_SANITIZE OR CMAKE_CROSSCOMPILING)
    math(EXPR M_TIMEOUT "10 * ${M_TIMEOUT}")  # sanitizers and emulation make a test up to fifty times slower
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${M_LABELS}" TIMEOUT ${M_TIMEOUT})
  if(SPECDEC_SANITIZE STREQUAL "thread")
    set_tests_properties(${name} PROPERTIES ENVIRONMENT "TSAN_OPTIONS=suppressions=${CMAKE_SOURCE_DIR}/tests/tsan_suppressions.txt:die_after_fork=0")
  endif()
  # Idle OpenMP threads must not spin on cores that another test uses: parity_test took twenty times as long.
  set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT OMP_WAIT_POLICY=PASSIVE)
endfunction()

# tests/source_folder.h gives tests the path of the source tree.
if(BUILD_TESTING)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/source_folder.cpp CONTENT [=[
#include "tests/source_folder.h"
std::string specdec::source_folder() { return "@CMAKE_SOURCE_DIR@"; }
]=] @ONLY)
  add_library(specdec_source_folder STATIC ${CMAKE_BINARY_DIR}/source_folder.cpp)
  target_link_libraries(specdec_source_folder PRIVATE specdec_flags)
endif()

# specdec_embed(OUT.cpp NAMESPACE kName=path…): generates OUT.cpp, which has the files as strings. OUT.cpp is generated
# again when a file changes.
function(specdec_embed out namespace)
  list(TRANSFORM ARGN REPLACE "^[^=]+=" "" OUTPUT_VARIABLE paths)
  list(JOIN ARGN "," files)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DNAMESPACE=${namespace} -DFILES=${files} -P ${CMAKE_SOURCE_DIR}/cmake/embed.cmake
    DEPENDS ${paths} ${CMAKE_SOURCE_DIR}/cmake/embed.cmake VERBATIM)
endfunction()

set(SPECDEC_TEST_OPTIONS $<$<NOT:$<CONFIG:Debug>>:-O1>)  # tests are compiled more often than run
specdec_precompile(plain)
specdec_precompile(test HEADERS <gtest/gtest.h> OPTIONS ${SPECDEC_TEST_OPTIONS} DEPS GTest::gtest)
if(SPECDEC_TORCH)
  specdec_precompile(torch HEADERS <ATen/ATen.h> DEPS specdec_torch)
  specdec_precompile(torch_test HEADERS <ATen/ATen.h> <gtest/gtest.h> OPTIONS ${SPECDEC_TEST_OPTIONS}
    DEPS specdec_torch GTest::gtest)
endif()
