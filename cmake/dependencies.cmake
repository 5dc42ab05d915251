# Everything that is not ours. Torch is found through Torch_DIR (cmake/setup.sh --env sets it for the pinned wheel;
# a user's own LibTorch >= 2.11 works the same way). Small libraries are linked statically where Debian ships archives,
# so that an install tree moves to a machine that has only a torch wheel.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

find_package(spdlog REQUIRED)
find_package(CURL REQUIRED)
find_package(Boost 1.74 REQUIRED)
if(BUILD_TESTING)
  find_package(GTest REQUIRED)
endif()

function(specdec_find_archive target name header)
  find_library(${target}_LIB NAMES lib${name}.a ${name} REQUIRED)
  find_path(${target}_INC ${header} REQUIRED)
  add_library(${target} INTERFACE)
  target_link_libraries(${target} INTERFACE ${${target}_LIB})
  target_include_directories(${target} SYSTEM INTERFACE ${${target}_INC})
endfunction()
specdec_find_archive(specdec_re2 re2 re2/re2.h)
specdec_find_archive(specdec_zstd zstd zstd.h)

specdec_find_archive(specdec_sqlitecpp SQLiteCpp SQLiteCpp/SQLiteCpp.h)
specdec_find_archive(specdec_sqlite sqlite3 sqlite3.h)
specdec_find_archive(specdec_prometheus prometheus-cpp-core prometheus/registry.h)
find_path(SPECDEC_TOML_INC toml++/toml.h REQUIRED)
target_link_libraries(specdec_sqlitecpp INTERFACE specdec_sqlite Threads::Threads ${CMAKE_DL_LIBS})
target_link_libraries(specdec_re2 INTERFACE Threads::Threads)

# OpenSSL statically: SHA-256 in every command, TLS never loaded at start-up.
find_library(SPECDEC_CRYPTO_A libcrypto.a REQUIRED)
add_library(specdec_crypto INTERFACE)
target_link_libraries(specdec_crypto INTERFACE ${SPECDEC_CRYPTO_A} Threads::Threads ${CMAKE_DL_LIBS})

if(SPECDEC_TORCH)
  if(SPECDEC_CUDA)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    set(CMAKE_CUDA_ARCHITECTURES 80 90)
    find_package(CUDAToolkit REQUIRED)
    set(TORCH_CUDA_ARCH_LIST "8.0;9.0")
  endif()
  find_package(Torch 2.11 REQUIRED)
  # Not TORCH_LIBRARIES: that pulls the whole of libtorch with CUDA into every process. The CPU half is loaded always,
  # the CUDA half by kernels/cuda only where a device is asked for.
  add_library(specdec_torch INTERFACE)
  get_filename_component(SPECDEC_TORCH_ROOT ${Torch_DIR}/../../.. ABSOLUTE)
  target_include_directories(specdec_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
  separate_arguments(SPECDEC_TORCH_FLAGS UNIX_COMMAND "${TORCH_CXX_FLAGS}")
  target_compile_options(specdec_torch INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${SPECDEC_TORCH_FLAGS}>)
  find_library(SPECDEC_TORCH_CPU torch_cpu PATHS ${SPECDEC_TORCH_ROOT}/lib NO_DEFAULT_PATH REQUIRED)
  find_library(SPECDEC_C10 c10 PATHS ${SPECDEC_TORCH_ROOT}/lib NO_DEFAULT_PATH REQUIRED)
  target_link_libraries(specdec_torch INTERFACE ${SPECDEC_TORCH_CPU} ${SPECDEC_C10})
endif()
