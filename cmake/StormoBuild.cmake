set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(STORMO_CCACHE ccache)
if(STORMO_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${STORMO_CCACHE})
endif()
find_program(STORMO_MOLD mold)
if(STORMO_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Our own code only: linked PRIVATE by every target of the project.
add_library(stormo_warnings INTERFACE)
target_compile_options(stormo_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual
  -Wconversion -Wno-sign-conversion -Werror)

set(STORMO_SANITIZE "" CACHE STRING "Sanitizers, e.g. address,undefined or thread")
if(STORMO_SANITIZE)
  add_compile_options(-fsanitize=${STORMO_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${STORMO_SANITIZE})
endif()
