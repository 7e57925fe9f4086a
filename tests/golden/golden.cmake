# stormo_golden(TARGET): lets a test use golden.h.
set(STORMO_GOLDEN_DIR ${CMAKE_CURRENT_LIST_DIR})
function(stormo_golden target)
  target_compile_definitions(${target} PRIVATE STORMO_GOLDEN_DIR="${STORMO_GOLDEN_DIR}")
  target_include_directories(${target} PRIVATE ${STORMO_GOLDEN_DIR}/../..)
endfunction()
