# What makes compiling fast: sources in batches, headers compiled once (CONTRIBUTING.md, "Fast builds").
option(STORMO_UNITY "Compile sources in batches" ON)

# Layers, and the program, in which time is spent by libtorch, by the kernel or by nobody: optimised less, for
# a quarter of their compile time.
set(STORMO_COLD_LAYERS "^(launch|model|observe|plan|train)(/|$)")
function(stormo_optimise_less target)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    # GCC sees with full optimisation only that some values are never read before they are set
    target_compile_options(${target} PRIVATE -Og -Wno-maybe-uninitialized)
  endif()
endfunction()

# stormo_batches(TARGET SIZE): SIZE sources of TARGET become one translation unit; SIZE FOLDER: those of a
# folder. Sources that have options of their own, or the property STORMO_ALONE, stay alone. CMake's own
# unity files name sources by absolute paths, and what one clone has compiled would be compiled again in
# another. The property STORMO_SOURCES has the sources themselves.
function(stormo_batches target size)
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES STORMO_SOURCES "${sources}")
  if(STORMO_UNITY)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL stormo_make_batches ${target} ${size})")
  endif()
endfunction()

function(stormo_make_batches target size)
  get_target_property(sources ${target} SOURCES)
  set(kept)
  set(batches)
  set(position 0)
  foreach(source IN LISTS sources)
    get_source_file_property(options ${source} COMPILE_OPTIONS)
    get_source_file_property(alone ${source} STORMO_ALONE)
    if(options OR alone)
      list(APPEND kept ${source})
      continue()
    endif()
    cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} NORMALIZE)
    cmake_path(RELATIVE_PATH source BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    if(size STREQUAL "FOLDER")
      cmake_path(GET source PARENT_PATH batch)
      string(MAKE_C_IDENTIFIER "${batch}" batch)
    else()
      math(EXPR batch "${position} / ${size}")
      math(EXPR position "${position} + 1")
    endif()
    list(APPEND batches ${batch})
    list(APPEND batch_${batch} ${source})
  endforeach()
  list(REMOVE_DUPLICATES batches)
  foreach(batch IN LISTS batches)
    list(LENGTH batch_${batch} count)
    if(count EQUAL 1)
      list(APPEND kept ${PROJECT_SOURCE_DIR}/${batch_${batch}})
      continue()
    endif()
    set(file ${CMAKE_CURRENT_BINARY_DIR}/batches/${target}_${batch}.cc)
    list(TRANSFORM batch_${batch} REPLACE "(.+)" "#include <\\1>\n" OUTPUT_VARIABLE text)
    string(CONCAT text ${text})
    file(CONFIGURE OUTPUT ${file} CONTENT "${text}")
    list(APPEND kept ${file})
  endforeach()
  set_target_properties(${target} PROPERTIES SOURCES "${kept}")
endfunction()

# stormo_precompile(CARRIER HEADERS h... [LIBS l...] [OPTIONS o...] [TORCH]): a target whose only product
# are the precompiled headers. GCC takes them only where options and definitions are the same, warnings
# included: -Wpedantic changes the predefined macros.
function(stormo_precompile carrier)
  cmake_parse_arguments(P "TORCH" "" "HEADERS;LIBS;OPTIONS" ${ARGN})
  file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/generated/${carrier}.cc CONTENT "// carries precompiled headers\n")
  add_library(${carrier} STATIC EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/generated/${carrier}.cc)
  target_link_libraries(${carrier} PRIVATE ${P_LIBS} stormo_warnings)
  target_compile_options(${carrier} PRIVATE ${P_OPTIONS})
  if(P_TORCH)
    stormo_torch_options(${carrier})
  endif()
  stormo_make_pch(${carrier} ${P_HEADERS})
endfunction()

# the target makes a precompiled header of these
function(stormo_make_pch target)
  stormo_see_through(${target})
  get_property(launcher GLOBAL PROPERTY RULE_LAUNCH_COMPILE)
  set_property(TARGET ${target} PROPERTY RULE_LAUNCH_COMPILE "${PROJECT_SOURCE_DIR}/tools/precompile ${launcher}")
  target_precompile_headers(${target} PRIVATE ${ARGN})
endfunction()

function(stormo_reuse target carrier)
  target_precompile_headers(${target} REUSE_FROM ${carrier})
  stormo_see_through(${target})
endfunction()

# lets ccache see through a precompiled header
function(stormo_see_through target)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  endif()
endfunction()

# What is included everywhere and takes long.
set(STORMO_STANDARD_HEADERS
  <algorithm> <array> <atomic> <chrono> <cmath> <condition_variable> <deque> <filesystem> <fstream> <functional>
  <iostream> <map> <memory> <mutex> <numeric> <optional> <random> <set> <span> <sstream> <string> <thread>
  <unordered_map> <variant> <vector>)
# Whoever loads libtorch's headers also instantiates, at the end of its translation unit, the templates that
# their inline functions name: with torch/torch.h twice as many as with these.
set(torch_headers <torch/types.h> <torch/utils.h> <torch/nn/module.h> <torch/nn/pimpl.h>
  <fmt/format.h> <fmt/ranges.h> <nlohmann/json.hpp> ${STORMO_STANDARD_HEADERS})
set(test_headers <gmock/gmock.h> <gtest/gtest.h>)
if(NOT STORMO_SANITIZE)
  set(STORMO_TEST_OPTIONS "SHELL:-O0 -U_FORTIFY_SOURCE")  # tests compile more often than they run
endif()
if(STORMO_WITH_TORCH)
  get_target_property(folder fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/generated/fmt_alone)
  file(CREATE_LINK ${folder}/fmt ${PROJECT_BINARY_DIR}/generated/fmt_alone/fmt SYMBOLIC)
  stormo_precompile(stormo_torch_pch TORCH HEADERS ${torch_headers} LIBS Stormo::torch nlohmann_json::nlohmann_json)
endif()
if(STORMO_BUILD_TESTS)
  stormo_precompile(stormo_test_pch HEADERS ${test_headers} ${STORMO_STANDARD_HEADERS}
    LIBS GTest::gmock OPTIONS ${STORMO_TEST_OPTIONS})
  if(STORMO_WITH_TORCH)
    stormo_precompile(stormo_torch_test_pch TORCH HEADERS <torch/torch.h> ${torch_headers} ${test_headers}
      LIBS Stormo::torch nlohmann_json::nlohmann_json GTest::gmock OPTIONS ${STORMO_TEST_OPTIONS})
  endif()
endif()
