# Two groups: the torch-free layers (enough for Stormo::comm) and the rest. Relocatable: nothing
# installed names the source tree, the build tree or the place of libtorch. The component `program` is what a wheel of
# the program has (tools/wheel).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(stormo_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/Stormo)

# Layers that exist, their libraries for pkg-config in link order (users before what they use).
function(stormo_install_layers export_set link_line)
  set(libraries)
  foreach(layer IN LISTS ARGN)
    if(TARGET stormo_${layer})
      set(targets stormo_${layer})
      get_target_property(rooms stormo_${layer} STORMO_ROOMS)
      if(rooms)
        list(APPEND targets ${rooms})
      endif()
      install(TARGETS ${targets} EXPORT ${export_set} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
      install(DIRECTORY ${PROJECT_SOURCE_DIR}/stormo/${layer}
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stormo FILES_MATCHING PATTERN "*.h")
      foreach(target IN LISTS targets)
        get_target_property(type ${target} TYPE)
        if(type STREQUAL "STATIC_LIBRARY")
          list(PREPEND libraries -l${target})
        endif()
      endforeach()
    endif()
  endforeach()
  list(JOIN libraries " " libraries)
  set(${link_line} "${libraries}" PARENT_SCOPE)
endfunction()

# the MPI engine is a component of its own: only who asks for it needs an MPI
set(stormo_comm_layers ${STORMO_FREE_LAYERS})
list(REMOVE_ITEM stormo_comm_layers mpi)
stormo_install_layers(StormoCommTargets STORMO_PC_COMM_LIBS ${stormo_comm_layers})
# join() takes what read_environment() of the layer beside it has found
target_link_libraries(stormo_comm INTERFACE $<INSTALL_INTERFACE:Stormo::launch>)
install(EXPORT StormoCommTargets NAMESPACE Stormo:: DESTINATION ${stormo_cmake_dir})
if(TARGET stormo_mpi)
  stormo_install_layers(StormoMpiTargets STORMO_PC_MPI_LIBS mpi)
  install(EXPORT StormoMpiTargets NAMESPACE Stormo:: DESTINATION ${stormo_cmake_dir})
endif()
install(FILES ${PROJECT_BINARY_DIR}/generated/stormo/base/version.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stormo/base)
set(STORMO_PC_REQUIRES "fmt libssl libcrypto libxxhash")
get_target_property(STORMO_HAS_CURL stormo_http STORMO_HAS_CURL)
if(STORMO_HAS_CURL)
  string(APPEND STORMO_PC_REQUIRES " libcurl")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/stormo-comm.pc.in ${PROJECT_BINARY_DIR}/stormo-comm.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/stormo-comm.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

if(STORMO_WITH_TORCH)
  add_library(stormo_everything INTERFACE)
  add_library(Stormo::stormo ALIAS stormo_everything)
  set_target_properties(stormo_everything PROPERTIES EXPORT_NAME stormo)
  foreach(layer IN LISTS STORMO_TORCH_LAYERS stormo_comm_layers)
    if(TARGET stormo_${layer})
      target_link_libraries(stormo_everything INTERFACE stormo_${layer})
    endif()
  endforeach()
  stormo_install_layers(StormoTargets STORMO_PC_TORCH_LIBS ${STORMO_TORCH_LAYERS})
  install(TARGETS stormo_everything EXPORT StormoTargets)
  install(EXPORT StormoTargets NAMESPACE Stormo:: DESTINATION ${stormo_cmake_dir})
  install(FILES ${PROJECT_SOURCE_DIR}/stormo/stormo.h
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/stormo OPTIONAL)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/FindStormoTorch.cmake DESTINATION ${stormo_cmake_dir})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/stormo.pc.in ${PROJECT_BINARY_DIR}/stormo.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/stormo.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/StormoConfig.cmake.in
  ${PROJECT_BINARY_DIR}/StormoConfig.cmake INSTALL_DESTINATION ${stormo_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/StormoConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/StormoConfig.cmake ${PROJECT_BINARY_DIR}/StormoConfigVersion.cmake
  DESTINATION ${stormo_cmake_dir})

# stormo-train needs the libraries of libtorch at run time. Where they are is the machine's affair:
# libexec/stormo/start-train is a small script that finds them and starts stormo-train beside it.
# install(TARGETS) would have the built program linked with a search path that ends in ":", and an
# empty element of it is the current folder. So the program is copied and its search path set here;
# that of the build contains the new one, hence there is room for it.
if(TARGET stormo_train_program)
  set(stormo_libexec ${CMAKE_INSTALL_LIBEXECDIR}/stormo)
  set(stormo_rpath "$ORIGIN/../../${CMAKE_INSTALL_LIBDIR}/stormo/torch/lib")
  set_target_properties(stormo_train_program PROPERTIES BUILD_RPATH "${stormo_rpath}")
  install(PROGRAMS $<TARGET_FILE:stormo_train_program> DESTINATION ${stormo_libexec} COMPONENT program)
  install(CODE "file(RPATH_SET
    FILE \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${stormo_libexec}/stormo-train\"
    NEW_RPATH [[${stormo_rpath}]])" COMPONENT program)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/start-train.sh.in ${PROJECT_BINARY_DIR}/start-train.sh @ONLY)
  install(PROGRAMS ${PROJECT_BINARY_DIR}/start-train.sh DESTINATION ${stormo_libexec} RENAME start-train
    COMPONENT program)
endif()
if(TARGET stormo)
  install(PROGRAMS $<TARGET_FILE:stormo> DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program)
endif()
if(TARGET stormo)  # the program knows its own commands
  foreach(script IN ITEMS bash:bash-completion/completions/stormo zsh:zsh/site-functions/_stormo
      fish:fish/vendor_completions.d/stormo.fish)
    string(REPLACE ":" ";" script ${script})
    list(GET script 0 shell)
    list(GET script 1 file)
    install(CODE "
      set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_DATADIR}/${file}\")
      execute_process(COMMAND \"$<TARGET_FILE:stormo>\" completion ${shell}
        OUTPUT_VARIABLE script COMMAND_ERROR_IS_FATAL ANY)
      file(WRITE \"\${file}\" \"\${script}\")" COMPONENT program)
  endforeach()
  install(CODE "
    set(folder \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_MANDIR}/man1\")
    file(MAKE_DIRECTORY \"\${folder}\")
    execute_process(COMMAND \"$<TARGET_FILE:stormo>\" manual \"\${folder}\" COMMAND_ERROR_IS_FATAL ANY)"
    COMPONENT program)
endif()
# recipes and what they train on, documents, and programs to copy: with links between them as here
install(DIRECTORY ${PROJECT_SOURCE_DIR}/recipes ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples
  DESTINATION ${CMAKE_INSTALL_DATADIR}/stormo COMPONENT program
  FILES_MATCHING PATTERN "*.toml" PATTERN "*.md" PATTERN "*.svg" PATTERN "*.cc")
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DATADIR}/stormo COMPONENT program)
