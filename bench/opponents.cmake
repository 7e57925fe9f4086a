# mpi_bench.cc and startup_mpi.cc, built with each MPI that is found, by the compiler wrappers of Open MPI and MPICH (which
# may be installed side by side) and in the folder of an Intel MPI. Beside each program NAME lies
# NAME.launcher: the command that starts its ranks.
set(STORMO_INTELMPI "$ENV{I_MPI_ROOT}" CACHE PATH
  "Intel MPI: the folder with include/, lib/ and bin/; default: what tools/setup.sh installs")
set(stormo_intelmpi "${STORMO_INTELMPI}")
if(NOT stormo_intelmpi)
  set(stormo_intelmpi ${PROJECT_SOURCE_DIR}/build/intelmpi)
endif()

function(stormo_mpi_opponent name launcher includes libraries)
  add_executable(${name}_bench mpi_bench.cc)
  target_compile_definitions(${name}_bench PRIVATE
    STORMO_NAME="${name}_bench" OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_include_directories(${name}_bench SYSTEM PRIVATE ${includes})
  target_link_libraries(${name}_bench PRIVATE stormo_bench ${libraries} stormo_warnings)
  add_executable(${name}_startup startup_mpi.cc)
  target_compile_definitions(${name}_startup PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_include_directories(${name}_startup SYSTEM PRIVATE ${includes})
  target_link_libraries(${name}_startup PRIVATE ${libraries} stormo_warnings)
  file(WRITE ${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/${name}_bench.launcher "${launcher}\n")
  message(STATUS "Opponent of the benchmarks: ${name} (${launcher})")
endfunction()

# By the wrapper: its -show is a compiler's command line. `macro` is one that only this mpi.h defines.
function(stormo_wrapped_opponent name macro)
  find_program(wrapper NAMES mpicc.${name} mpicc NO_CACHE)  # another may be installed later
  if(NOT wrapper)
    return()
  endif()
  execute_process(COMMAND ${wrapper} -show
    OUTPUT_VARIABLE line OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  separate_arguments(words UNIX_COMMAND "${line}")
  set(includes ${words})
  list(FILTER includes INCLUDE REGEX "^-I")
  list(TRANSFORM includes REPLACE "^-I" "")
  set(folders ${words})
  list(FILTER folders INCLUDE REGEX "^-L")
  list(TRANSFORM folders REPLACE "^-L" "")
  set(libraries)
  list(FILTER words INCLUDE REGEX "^-l")
  foreach(word IN LISTS words)
    string(SUBSTRING "${word}" 2 -1 library)
    find_library(path NAMES ${library} HINTS ${folders} NO_CACHE)
    list(APPEND libraries ${path})
    unset(path)
  endforeach()
  find_path(header mpi.h PATHS ${includes} NO_CACHE NO_DEFAULT_PATH)
  if(header)
    file(STRINGS ${header}/mpi.h defined REGEX "define +${macro}[ \t]")
  endif()
  get_filename_component(folder ${wrapper} DIRECTORY)
  find_program(launcher NAMES mpiexec.${name} mpiexec PATHS ${folder} NO_CACHE NO_DEFAULT_PATH)
  if(defined AND launcher)
    stormo_mpi_opponent(${name} ${launcher} "${includes}" "${libraries}")
  endif()
endfunction()

stormo_wrapped_opponent(openmpi OPEN_MPI)
if(STORMO_SANITIZE)  # the bench's own code is the same with all of them
  return()
endif()
stormo_wrapped_opponent(mpich MPICH_NAME)
if(EXISTS ${stormo_intelmpi}/include/mpi.h AND EXISTS ${stormo_intelmpi}/lib/libmpi.so)
  stormo_mpi_opponent(intelmpi ${stormo_intelmpi}/bin/mpiexec.hydra
    ${stormo_intelmpi}/include ${stormo_intelmpi}/lib/libmpi.so)
endif()
