# What pip puts into the wheel stormo-torch beside the files of stormo_torch (pyproject.toml): the extension, those
# that tools/wheel has built for other releases of torch, and the module of the entry point.
set(STORMO_MORE_EXTENSIONS "" CACHE STRING "More extension modules, built for other torches")
install(TARGETS stormo_torch_ext LIBRARY DESTINATION stormo_torch COMPONENT python)
install(FILES ${STORMO_MORE_EXTENSIONS} DESTINATION stormo_torch COMPONENT python)
install(FILES stormo_torch_autoload.py DESTINATION . COMPONENT python)
