# What `cmake --install` puts where, by component, and the Debian packages that `scripts/package.sh` makes of them:
#   server   moefarmd, its unit and its backup's
#   worker   moefarm-worker; in libexec/moefarm what it starts or loads; its unit; the kernels' sources; headers for --family-so
#   cli      moefarm, the unit that keeps a host's table, the list of models, the documentation, the examples
# Folders are relative to the prefix: an installed tree may be moved. Units name programs without their folder.
include(GNUInstallDirs)
set(mf_units lib/systemd/system)
set(mf_private ${CMAKE_INSTALL_LIBEXECDIR}/moefarm)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)   # tests and benches are no part of it: target programs is all
add_custom_target(programs DEPENDS moefarmd moefarm-worker moefarm-compile moefarm fmoe)

install(TARGETS moefarmd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)

install(FILES deploy/systemd/moefarmd.service deploy/systemd/moefarm-backup.service deploy/systemd/moefarm-backup.timer
    DESTINATION ${mf_units} COMPONENT server)

install(DIRECTORY deploy/kubernetes deploy/monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm COMPONENT server)

install(TARGETS moefarm-worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT worker)
install(TARGETS moefarm-compile RUNTIME DESTINATION ${mf_private} COMPONENT worker)
foreach(vendor amd nvidia)
    if(TARGET moefarm-hip-${vendor})
        add_dependencies(programs moefarm-hip-${vendor})
        install(TARGETS moefarm-hip-${vendor} LIBRARY DESTINATION ${mf_private} COMPONENT worker)
    endif()
endforeach()
install(FILES deploy/systemd/moefarm-worker@.service DESTINATION ${mf_units} COMPONENT worker)
install(PROGRAMS deploy/slurm/moefarm-workers.sbatch DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm/slurm COMPONENT worker)
install(DIRECTORY kernels/gpu/src/ DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm/hip COMPONENT worker
    PATTERN CMakeLists.txt EXCLUDE)
# What kernels/families/family_plugin.h includes, and no more: all that a shared object of somebody else's needs.
foreach(header common/base/names common/moe/device_class common/moe/layer common/moe/shape common/moe/status
        common/moe/step common/moe/tensor_spec kernels/core/code kernels/core/device kernels/core/family
        kernels/core/l2_halves kernels/core/tensors kernels/families/family_plugin)
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${header}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/moefarm/${folder} COMPONENT worker)
endforeach()

install(TARGETS moefarm RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cli)
install(FILES deploy/systemd/moefarm-pull@.service deploy/systemd/moefarm-pull@.timer DESTINATION ${mf_units} COMPONENT cli)
install(FILES deploy/sysusers/moefarm-pull.conf DESTINATION lib/sysusers.d COMPONENT cli)
install(FILES README.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cli)
install(FILES common/table/models.csv DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm COMPONENT cli)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cli
    PATTERN __pycache__ EXCLUDE)

# Debian wants each package's licence beside its name.
foreach(package moefarm-server moefarm-worker moefarm-cli libfmoe-dev)
    string(REGEX REPLACE "^moefarm-|^lib|-dev$" "" component ${package})
    install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} RENAME copyright
        COMPONENT ${component})
endforeach()

# A service stops before its program goes, and systemd looks at the units again.
foreach(component server worker cli)
    string(TOUPPER ${component} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
        ${CMAKE_SOURCE_DIR}/deploy/debian/${component}/prerm ${CMAKE_SOURCE_DIR}/deploy/debian/${component}/postrm
        ${CMAKE_SOURCE_DIR}/deploy/debian/${component}/postinst)
endforeach()
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME moefarm)
set(CPACK_PACKAGE_VENDOR moefarm)
set(CPACK_PACKAGE_CONTACT "the moefarm authors <moefarm@localhost>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL server worker cli fmoe)
set(CPACK_DEBIAN_FMOE_PACKAGE_NAME libfmoe-dev)
set(CPACK_DEBIAN_FMOE_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_FMOE_DESCRIPTION
    "The production operator: a C library that serves fused mixture-of-experts layers from tables that moefarm tuned.")
# Of GPUs it loads what the worker's package has.
set(CPACK_DEBIAN_FMOE_PACKAGE_SUGGESTS moefarm-worker)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_SERVER_DESCRIPTION
    "The coordinator: holds the farm's database, leases work to workers and answers people over REST, with a status page.")
set(CPACK_DEBIAN_WORKER_DESCRIPTION
    "A node's workers: measure kernels on this machine's GPUs, through the runtimes that it has, or on its CPU.")
set(CPACK_DEBIAN_CLI_DESCRIPTION
    "The command line: hands shapes to a farm, follows it and brings the tuned tables back. With documentation and examples.")
# The runtimes of GPUs are opened when there is one: no package is needed for them to be left out.
set(CPACK_DEBIAN_WORKER_PACKAGE_SUGGESTS libamdhip64-5)
# moefarm tune has a farm of its own where these are.
set(CPACK_DEBIAN_CLI_PACKAGE_SUGGESTS "moefarm-server, moefarm-worker")
include(CPack)
