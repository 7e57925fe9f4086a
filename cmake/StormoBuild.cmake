# Language level, warnings, compiler cache, linker, sanitizers, output folders.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# -O2: the hot loops are written with SIMD intrinsics, -O3 only costs compile time.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
# Everything is -fPIC, programs too: a precompiled header fits only one code model, and the static
# libraries must fit into a user's shared library.
add_compile_options(-fPIC)
# __FILE__ and debug information name files from the root of the source tree: nothing that is
# installed knows where it was built.
add_compile_options(-ffile-prefix-map=${PROJECT_SOURCE_DIR}/= -ffile-prefix-map=${PROJECT_BINARY_DIR}=build)

# The settings let ccache keep precompiled headers. (Not CCACHE_DEPEND: a clone then finds nothing that
# another clone has compiled with a precompiled header.) With its inode cache a precompiled header of half
# a gigabyte is hashed once, not for each source. A rule launcher, because CMAKE_CXX_COMPILER_LAUNCHER
# would also enter compile_commands.json, where clangd and clang-tidy expect the compiler. What is really
# compiled leaves its CPU time beside the object, for tools/build_cost.
find_program(STORMO_CCACHE ccache)
set(stormo_launcher ${PROJECT_SOURCE_DIR}/tools/compile_seconds)
if(STORMO_CCACHE)
  set(stormo_launcher "env CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_MAXSIZE=10G CCACHE_INODECACHE=true CCACHE_PREFIX=${stormo_launcher} ${STORMO_CCACHE}")
endif()
set_property(GLOBAL PROPERTY RULE_LAUNCH_COMPILE "${stormo_launcher}")
find_program(STORMO_MOLD mold)
if(STORMO_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Hardening (docs/security.md). Programs are position-independent, with their tables of functions
# resolved at the start and read-only from then on; no element of their search path for libraries is
# empty or relative, see StormoInstall.cmake.
add_link_options(-Wl,-z,relro -Wl,-z,now $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-pie>)
# Bounds of containers, of the stack and of the C library's copies, in everything but the kernels, which
# take the first back themselves. Without optimisation the last do not exist; sanitizers check more, want
# the calls as written, and lay out stacks that the protector's would shift off their alignment (GCC 12).
# For all targets alike: a precompiled header must be used as it was compiled.
option(STORMO_HARDENED "Compile bounds checks into everything but the kernels" ON)
if(STORMO_HARDENED)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
  if(NOT STORMO_SANITIZE)
    add_compile_options(-fstack-protector-strong)
  endif()
  if(CMAKE_BUILD_TYPE STREQUAL "Release" AND NOT STORMO_SANITIZE)
    add_compile_options("SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")
  endif()
endif()

# Our own code only: linked PRIVATE by every target of the project.
add_library(stormo_warnings INTERFACE)
target_compile_options(stormo_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual
  -Wconversion -Wno-sign-conversion -Wno-missing-field-initializers -Werror)

option(STORMO_FUZZ "Build the fuzz targets of tests/fuzz for libFuzzer; needs clang" OFF)
if(STORMO_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
set(STORMO_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
if(STORMO_SANITIZE)
  add_compile_options(-fsanitize=${STORMO_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  # GCC's warnings that follow the flow of values read a sanitizer's own code, too, and are wrong there.
  target_compile_options(stormo_warnings INTERFACE
    -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict -Wno-maybe-uninitialized)
  add_link_options(-fsanitize=${STORMO_SANITIZE})
endif()
