# Finds libtorch without torch's own CMake files (those need a CUDA toolkit for CUDA wheels).
#   STORMO_TORCH   folder that holds include/ and lib/ (a libtorch zip, or site-packages/torch)
# Defines the imported target Stormo::torch and stormo_use_torch(target).
set(STORMO_TORCH "$ENV{STORMO_TORCH}" CACHE PATH "libtorch: the folder with include/ and lib/")
if(NOT STORMO_TORCH)
  find_package(Python3 COMPONENTS Interpreter QUIET)
  if(Python3_Interpreter_FOUND)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
      OUTPUT_VARIABLE stormo_torch_guess OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    set(STORMO_TORCH "${stormo_torch_guess}" CACHE PATH "" FORCE)
  endif()
endif()

find_path(STORMO_TORCH_INCLUDE ATen/ATen.h PATHS ${STORMO_TORCH}/include NO_DEFAULT_PATH)
find_library(STORMO_TORCH_LIBRARY torch PATHS ${STORMO_TORCH}/lib NO_DEFAULT_PATH)
find_library(STORMO_TORCH_CPU_LIBRARY torch_cpu PATHS ${STORMO_TORCH}/lib NO_DEFAULT_PATH)
find_library(STORMO_C10_LIBRARY c10 PATHS ${STORMO_TORCH}/lib NO_DEFAULT_PATH)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(StormoTorch
  REQUIRED_VARS STORMO_TORCH_INCLUDE STORMO_TORCH_LIBRARY STORMO_TORCH_CPU_LIBRARY STORMO_C10_LIBRARY
  REASON_FAILURE_MESSAGE "set STORMO_TORCH to the folder of libtorch (with include/ and lib/), or run ./quickstart, which installs one")

if(StormoTorch_FOUND AND NOT TARGET Stormo::torch)
  add_library(Stormo::torch INTERFACE IMPORTED)
  set_target_properties(Stormo::torch PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
      "${STORMO_TORCH_INCLUDE};${STORMO_TORCH_INCLUDE}/torch/csrc/api/include"
    INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1"
    INTERFACE_LINK_LIBRARIES
      "${STORMO_TORCH_LIBRARY};${STORMO_TORCH_CPU_LIBRARY};${STORMO_C10_LIBRARY}")
endif()

# Links libtorch and shares one precompiled <torch/torch.h> among all torch targets.
function(stormo_use_torch target)
  if(NOT TARGET stormo_torch_pch)
    file(WRITE ${CMAKE_BINARY_DIR}/generated/torch_pch.cc "// carries the precompiled header\n")
    add_library(stormo_torch_pch STATIC ${CMAKE_BINARY_DIR}/generated/torch_pch.cc)
    target_link_libraries(stormo_torch_pch PRIVATE Stormo::torch)
    target_precompile_headers(stormo_torch_pch PRIVATE <torch/torch.h>)
  endif()
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY")
    target_link_libraries(${target} PUBLIC Stormo::torch)
  else()
    target_link_libraries(${target} PRIVATE Stormo::torch)
  endif()
  target_precompile_headers(${target} REUSE_FROM stormo_torch_pch)
endfunction()
