# cpack reads this file before it makes the package. It sets the package's dependencies, which dpkg-shlibdeps derives
# from the libraries that the binaries load. LibTorch belongs to no Debian package, so it is left out.
set(folder ${CPACK_PACKAGE_DIRECTORY}/shlibdeps)
file(WRITE ${folder}/debian/control "Source: specdec\n\nPackage: specdec\nArchitecture: any\n")
set(arguments)
foreach(library ${CPACK_SPECDEC_LIBRARIES})
  list(APPEND arguments -l${library})
endforeach()
foreach(binary ${CPACK_SPECDEC_BINARIES})
  list(APPEND arguments -e${binary})
endforeach()
execute_process(COMMAND dpkg-shlibdeps --ignore-missing-info -O ${arguments} WORKING_DIRECTORY ${folder}
  OUTPUT_VARIABLE depends ERROR_VARIABLE said RESULT_VARIABLE code OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT code EQUAL 0 OR NOT depends MATCHES "^shlibs:Depends=(.+)")
  message(FATAL_ERROR "dpkg-shlibdeps (package dpkg-dev) names no dependencies: ${said}")
endif()
set(CPACK_DEBIAN_PACKAGE_DEPENDS "${CMAKE_MATCH_1}")
