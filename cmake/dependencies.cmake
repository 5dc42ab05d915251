# Finds everything that is not part of this repository. Torch is found through Torch_DIR, which cmake/setup.sh --env
# sets for the pinned wheel; a user's own LibTorch >= 2.11 works the same way. Small libraries are linked statically
# where Debian ships archives, so that an install tree runs on a machine that has only a torch wheel.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

find_package(spdlog REQUIRED)
find_package(CURL REQUIRED)
find_package(ZLIB REQUIRED)
find_package(Boost 1.81 REQUIRED)
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
specdec_find_archive(specdec_simdjson simdjson simdjson.h)
find_path(SPECDEC_XXHASH_INC xxhash.h REQUIRED)  # header only

specdec_find_archive(specdec_sqlitecpp SQLiteCpp SQLiteCpp/SQLiteCpp.h)
specdec_find_archive(specdec_sqlite sqlite3 sqlite3.h)
specdec_find_archive(specdec_prometheus prometheus-cpp-core prometheus/registry.h)
find_path(SPECDEC_TOML_INC toml++/toml.h REQUIRED)
target_link_libraries(specdec_sqlitecpp INTERFACE specdec_sqlite Threads::Threads ${CMAKE_DL_LIBS})
target_link_libraries(specdec_re2 INTERFACE Threads::Threads)

# SHA-256 comes from the shared libcrypto, which libcurl's libssl loads anyway. With a static libcrypto in the program,
# libssl would get half of its symbols from that second copy. The server's TLS uses the same libssl.
find_library(SPECDEC_CRYPTO libcrypto.so REQUIRED)
add_library(specdec_crypto INTERFACE)
target_link_libraries(specdec_crypto INTERFACE ${SPECDEC_CRYPTO} Threads::Threads ${CMAKE_DL_LIBS})
find_library(SPECDEC_SSL libssl.so REQUIRED)
add_library(specdec_ssl INTERFACE)
target_link_libraries(specdec_ssl INTERFACE ${SPECDEC_SSL} specdec_crypto)

# Torch's own config file uses the legacy FindCUDA and links the whole of libtorch into every process. Most of this
# project needs only LibTorch's headers and the two libraries of its CPU half; CUDA code adds its own libraries
# (engine/CMakeLists.txt). The fuzz target of config.json needs header-only types and no library.
if(SPECDEC_TORCH OR SPECDEC_FUZZ)
  if(NOT Torch_DIR AND DEFINED ENV{Torch_DIR})
    set(Torch_DIR $ENV{Torch_DIR})
  endif()
  set(Torch_DIR "${Torch_DIR}" CACHE PATH "share/cmake/Torch of a LibTorch >= 2.11")
  get_filename_component(SPECDEC_TORCH_ROOT "${Torch_DIR}/../../.." ABSOLUTE)
  find_path(SPECDEC_TORCH_INCLUDE ATen/ATen.h PATHS ${SPECDEC_TORCH_ROOT}/include NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  file(STRINGS ${SPECDEC_TORCH_INCLUDE}/torch/headeronly/version.h torch_version REGEX "define TORCH_VERSION_(MAJOR|MINOR) ")
  string(REGEX MATCHALL "[0-9]+" torch_version "${torch_version}")
  list(JOIN torch_version "." torch_version)
  if(torch_version VERSION_LESS 2.11)
    message(FATAL_ERROR "LibTorch ${torch_version} found in ${SPECDEC_TORCH_ROOT}, 2.11 or newer is needed (set Torch_DIR)")
  endif()
  add_library(specdec_torch_headers INTERFACE)
  target_include_directories(specdec_torch_headers SYSTEM INTERFACE ${SPECDEC_TORCH_INCLUDE})
endif()
if(SPECDEC_TORCH)
  find_library(SPECDEC_TORCH_CPU torch_cpu PATHS ${SPECDEC_TORCH_ROOT}/lib NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  find_library(SPECDEC_C10 c10 PATHS ${SPECDEC_TORCH_ROOT}/lib NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  add_library(specdec_torch INTERFACE)
  target_link_libraries(specdec_torch INTERFACE specdec_torch_headers ${SPECDEC_TORCH_CPU} ${SPECDEC_C10})
  find_path(SPECDEC_GLOO_INC gloo/context.h REQUIRED)  # headers only: LibTorch contains Gloo
  if(SPECDEC_CUDA)
    enable_language(CUDA)
    set(CMAKE_CUDA_STANDARD 20)
    if(NOT DEFINED CACHE{SPECDEC_CUDA_ARCHITECTURES})
      # Builds for this machine's GPUs, or for Hopper if none of them is supported. The preset `dist` builds for all
      # supported architectures. A container may have a driver and no GPU, so the list that CMake detected decides.
      set(architectures ${CMAKE_CUDA_ARCHITECTURES_NATIVE})
      list(FILTER architectures INCLUDE REGEX "^([89][0-9]|1[0-9][0-9])")
      if(NOT architectures)
        set(architectures 90)
      endif()
      set(SPECDEC_CUDA_ARCHITECTURES ${architectures} CACHE STRING "GPU architectures the kernels are compiled for")
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${SPECDEC_CUDA_ARCHITECTURES})
    find_package(CUDAToolkit REQUIRED)
    find_library(SPECDEC_C10_CUDA c10_cuda PATHS ${SPECDEC_TORCH_ROOT}/lib NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  endif()
endif()
