# Installs the relocatable tree: bin/specdec, libexec/specdec-engine, lib/specdec/ with the small shared libraries,
# share/specdec with the demo's model, share/doc/specdec with the licences and the SBOM. LibTorch, CUDA, glibc and
# libstdc++ come from the machine (cli/exec_engine.cpp finds torch). The tree uses DT_RPATH because DT_RUNPATH does not
# apply to the dependencies of the small shared libraries.
set(SPECDEC_EXECUTABLE_LINKING -Wl,--disable-new-dtags,--gc-sections)
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)  # base/older_libstdcxx.cpp explains this
  list(APPEND SPECDEC_EXECUTABLE_LINKING -Wl,--wrap=_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE)
endif()
install(TARGETS specdec RUNTIME DESTINATION bin)
set_target_properties(specdec PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/specdec")
target_link_options(specdec PRIVATE ${SPECDEC_EXECUTABLE_LINKING})
install(DIRECTORY ${CMAKE_SOURCE_DIR}/cli/demo/assets/ DESTINATION share/specdec/demo)
foreach(folder share/bash-completion share/zsh share/fish share/man lib/python3)
  get_filename_component(parent ${folder} DIRECTORY)
  install(DIRECTORY ${CMAKE_BINARY_DIR}/${folder} DESTINATION ${parent} PATTERN __pycache__ EXCLUDE)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/docs/dependencies.md DESTINATION share/doc/specdec)
set_target_properties(specdec_rust PROPERTIES INSTALL_RPATH "$ORIGIN")
install(TARGETS specdec_rust LIBRARY DESTINATION lib/specdec)
set(SPECDEC_INSTALLED $<TARGET_FILE:specdec>)
if(SPECDEC_TORCH)
  install(TARGETS specdec-engine RUNTIME DESTINATION libexec)
  set_target_properties(specdec-engine PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/specdec")
  target_link_options(specdec-engine PRIVATE ${SPECDEC_EXECUTABLE_LINKING})
  list(APPEND SPECDEC_INSTALLED $<TARGET_FILE:specdec-engine>)
  if(TARGET specdec_cuda)
    install(TARGETS specdec_cuda LIBRARY DESTINATION libexec)
    set_target_properties(specdec_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
  endif()
  if(TARGET gpu_test)  # only `make dist` installs this component, for machines with a GPU (tests/gpu/run.py)
    install(TARGETS gpu_test RUNTIME DESTINATION libexec COMPONENT gpu EXCLUDE_FROM_ALL)
    install(PROGRAMS ${CMAKE_SOURCE_DIR}/tests/gpu/run.py ${CMAKE_SOURCE_DIR}/tests/gpu/peers.py DESTINATION share/specdec/gpu COMPONENT gpu EXCLUDE_FROM_ALL)
    set_target_properties(gpu_test PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/specdec")
    target_link_options(gpu_test PRIVATE ${SPECDEC_EXECUTABLE_LINKING})
  endif()
endif()
if(CMAKE_CROSSCOMPILING)  # the install script finds the sysroot's libraries by this run path
  set_target_properties(specdec PROPERTIES
    BUILD_RPATH "${CMAKE_SYSROOT}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE};${CMAKE_SYSROOT}/lib/${CMAKE_LIBRARY_ARCHITECTURE}")
endif()
set(SPECDEC_INSTALL_SCRIPT ${CMAKE_BINARY_DIR}/install_libraries-$<CONFIG>.cmake)
find_program(SPECDEC_PYTHON3 python3 REQUIRED)
# Lists one file of each package that is linked or compiled in. cmake/bill_of_materials.py asks dpkg which package owns
# the file.
set(compiled_in ${specdec_re2_LIB} ${specdec_zstd_LIB} ${specdec_simdjson_LIB} ${specdec_sqlitecpp_LIB} ${specdec_sqlite_LIB} ${specdec_prometheus_LIB})
foreach(header CLI/CLI.hpp nlohmann/json.hpp boost/version.hpp toml++/toml.h xxhash.h)
  string(MAKE_C_IDENTIFIER "SPECDEC_FILE_${header}" variable)
  find_file(${variable} ${header} REQUIRED)
  list(APPEND compiled_in ${${variable}})
endforeach()
if(SPECDEC_TORCH)
  list(APPEND compiled_in ${SPECDEC_GLOO_INC}/gloo/context.h)
endif()
string(CONCAT SPECDEC_INSTALL_CODE "set(executables \"${SPECDEC_INSTALLED}\")\n" [=[
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${executables} RESOLVED_DEPENDENCIES_VAR found
  PRE_EXCLUDE_REGEXES "^lib(specdec_rs|torch|c10|cu(blas|da|dnn|dss|fft|file|pti|rand|solver|sparse)|nv|nccl|gomp)" "^lib(stdc\\+\\+|gcc_s|c|m|dl|rt|pthread|resolv|mvec|util)\\.so" "^ld-linux"
  POST_EXCLUDE_REGEXES "/site-packages/")
foreach(library ${found})
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/specdec" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES ${library})
endforeach()
]=])
file(GENERATE OUTPUT ${SPECDEC_INSTALL_SCRIPT} CONTENT "${SPECDEC_INSTALL_CODE}")
install(SCRIPT ${SPECDEC_INSTALL_SCRIPT} COMPONENT bundled)
# Installed last, because the bill of materials lists the content of lib/specdec. DESTDIR is the folder in which cpack
# gathers the files.
install(CODE "execute_process(COMMAND ${SPECDEC_PYTHON3} ${CMAKE_SOURCE_DIR}/cmake/bill_of_materials.py
  \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\" ${CMAKE_SOURCE_DIR} ${CMAKE_SYSTEM_PROCESSOR} ${CMAKE_SYSROOT}/
  ${compiled_in} COMMAND_ERROR_IS_FATAL ANY)")
if(NOT CMAKE_CROSSCOMPILING)  # the package's dependencies come from this machine's dpkg
  include(cmake/deb.cmake)
endif()
