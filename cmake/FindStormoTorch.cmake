# Finds libtorch without torch's own CMake files (those need a CUDA toolkit for CUDA wheels). The first of
#   STORMO_TORCH            folder with include/ and lib/ (a libtorch zip, or site-packages/torch)
#   STORMO_TORCH            of the environment
#   what was found before   in this build folder, so that a later run does not need the environment
#   python3                 its torch
# A search that failed is not remembered. Defines the imported target Stormo::torch and
# STORMO_TORCH_VERSION. Installed beside StormoConfig.cmake, so it must not depend on anything of the
# project.
set(STORMO_TORCH "" CACHE PATH "libtorch: the folder with include/ and lib/")
set(stormo_torch_root "${STORMO_TORCH}")
if(NOT stormo_torch_root)
  set(stormo_torch_root "$ENV{STORMO_TORCH}")
endif()
if(NOT stormo_torch_root AND EXISTS "${STORMO_TORCH_LAST_ROOT}/lib")
  set(stormo_torch_root "${STORMO_TORCH_LAST_ROOT}")
endif()
if(NOT stormo_torch_root)
  unset(stormo_python)
  if(SKBUILD)  # pip builds for the Python that it runs in
    set(stormo_python ${Python3_EXECUTABLE})
  endif()
  find_program(stormo_python python3 NO_CACHE)
  if(stormo_python)
    # nothing is taken from the current folder
    string(REPLACE ":" ";" stormo_python_path "$ENV{PYTHONPATH}")
    list(FILTER stormo_python_path INCLUDE REGEX "^/")
    list(JOIN stormo_python_path ":" stormo_python_path)
    execute_process(
      COMMAND ${CMAKE_COMMAND} -E env "PYTHONPATH=${stormo_python_path}" --unset=PYTHONSTARTUP --unset=PYTHONINSPECT
        ${stormo_python} -c "import sys; sys.path = [p for p in sys.path if p]; import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE stormo_torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
endif()

# a changed STORMO_TORCH must not leave half of the old one behind
if(NOT stormo_torch_root STREQUAL "${STORMO_TORCH_LAST_ROOT}")
  foreach(name INCLUDE LIBRARY CPU_LIBRARY CUDA_LIBRARY C10_LIBRARY)
    unset(STORMO_TORCH_${name} CACHE)
  endforeach()
  set(STORMO_TORCH_LAST_ROOT "${stormo_torch_root}" CACHE INTERNAL "")
endif()
find_path(STORMO_TORCH_INCLUDE ATen/ATen.h PATHS ${stormo_torch_root}/include NO_DEFAULT_PATH)
find_library(STORMO_TORCH_LIBRARY torch PATHS ${stormo_torch_root}/lib NO_DEFAULT_PATH)
find_library(STORMO_TORCH_CPU_LIBRARY torch_cpu PATHS ${stormo_torch_root}/lib NO_DEFAULT_PATH)
find_library(STORMO_TORCH_CUDA_LIBRARY torch_cuda PATHS ${stormo_torch_root}/lib NO_DEFAULT_PATH)
find_library(STORMO_TORCH_C10_LIBRARY c10 PATHS ${stormo_torch_root}/lib NO_DEFAULT_PATH)
mark_as_advanced(STORMO_TORCH_INCLUDE STORMO_TORCH_LIBRARY STORMO_TORCH_CPU_LIBRARY
  STORMO_TORCH_CUDA_LIBRARY STORMO_TORCH_C10_LIBRARY)
if(NOT (STORMO_TORCH_INCLUDE AND STORMO_TORCH_LIBRARY AND STORMO_TORCH_CPU_LIBRARY AND STORMO_TORCH_C10_LIBRARY))
  unset(STORMO_TORCH_LAST_ROOT CACHE)
endif()

set(STORMO_TORCH_VERSION)
foreach(file torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
  if(NOT STORMO_TORCH_VERSION AND EXISTS "${STORMO_TORCH_INCLUDE}/${file}")
    file(STRINGS "${STORMO_TORCH_INCLUDE}/${file}" lines REGEX "define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
    string(REGEX MATCHALL "[0-9]+" numbers "${lines}")
    list(JOIN numbers "." STORMO_TORCH_VERSION)
  endif()
endforeach()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(StormoTorch
  REQUIRED_VARS STORMO_TORCH_INCLUDE STORMO_TORCH_LIBRARY STORMO_TORCH_CPU_LIBRARY
    STORMO_TORCH_C10_LIBRARY
  VERSION_VAR STORMO_TORCH_VERSION
  REASON_FAILURE_MESSAGE "set STORMO_TORCH to the folder of libtorch 2.11 or newer (with include/ and lib/), activate a Python that has torch (pip: --no-build-isolation), or run ./quickstart, which installs one")

if(StormoTorch_FOUND AND NOT TARGET Stormo::torch)
  add_library(Stormo::torch INTERFACE IMPORTED)
  set(stormo_torch_libraries
    ${STORMO_TORCH_LIBRARY} ${STORMO_TORCH_CPU_LIBRARY} ${STORMO_TORCH_C10_LIBRARY})
  if(STORMO_TORCH_CUDA_LIBRARY)  # registers its kernels when loaded; nothing refers to it by name
    list(APPEND stormo_torch_libraries
      -Wl,--push-state,--no-as-needed ${STORMO_TORCH_CUDA_LIBRARY} -Wl,--pop-state)
  endif()
  set_target_properties(Stormo::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES
      "${STORMO_TORCH_INCLUDE};${STORMO_TORCH_INCLUDE}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1"
    INTERFACE_LINK_LIBRARIES "${stormo_torch_libraries}")
endif()
