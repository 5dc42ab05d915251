# The relocatable tree: bin/specdec, libexec/specdec-engine, lib/specdec/ with the small shared libraries, share/specdec with the
# demo's model. LibTorch, CUDA, glibc and libstdc++ come from the machine (cli/exec_engine.cpp finds torch).
install(TARGETS specdec RUNTIME DESTINATION bin)
set_target_properties(specdec PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/specdec")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/cli/demo/assets/ DESTINATION share/specdec/demo)
set(SPECDEC_INSTALLED $<TARGET_FILE:specdec>)
if(SPECDEC_TORCH)
  install(TARGETS specdec-engine RUNTIME DESTINATION libexec)
  set_target_properties(specdec-engine PROPERTIES INSTALL_RPATH "$ORIGIN/../lib/specdec")
  list(APPEND SPECDEC_INSTALLED $<TARGET_FILE:specdec-engine>)
  if(TARGET specdec_cuda)
    install(TARGETS specdec_cuda LIBRARY DESTINATION libexec)
    set_target_properties(specdec_cuda PROPERTIES INSTALL_RPATH "$ORIGIN")
  endif()
endif()
set(SPECDEC_INSTALL_SCRIPT ${CMAKE_BINARY_DIR}/install_libraries-$<CONFIG>.cmake)
string(CONCAT SPECDEC_INSTALL_CODE "set(executables \"${SPECDEC_INSTALLED}\")\n" [=[
file(GET_RUNTIME_DEPENDENCIES EXECUTABLES ${executables} RESOLVED_DEPENDENCIES_VAR found
  PRE_EXCLUDE_REGEXES "^lib(torch|c10|cu|nv|nccl|gomp)" "^lib(stdc\\+\\+|gcc_s|c|m|dl|rt|pthread|resolv|mvec|util)\\.so" "^ld-linux"
  POST_EXCLUDE_REGEXES "/site-packages/")
foreach(library ${found})
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib/specdec" TYPE SHARED_LIBRARY FOLLOW_SYMLINK_CHAIN FILES ${library})
endforeach()
]=])
file(GENERATE OUTPUT ${SPECDEC_INSTALL_SCRIPT} CONTENT "${SPECDEC_INSTALL_CODE}")
install(SCRIPT ${SPECDEC_INSTALL_SCRIPT})
