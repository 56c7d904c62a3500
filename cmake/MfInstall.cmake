# Files that `cmake --install` installs, by component. `scripts/package.sh` builds a Debian package of each
# component:
#   server   moefarmd, its systemd units
#   worker   moefarm-worker, its systemd unit, the programs and modules that it starts or loads
#            (libexec/moefarm), the kernels' sources, headers for --family-so
#   cli      moefarm, the systemd unit that pulls a host's table, the list of models, documentation, examples
# Folders are relative to the prefix, and systemd units name programs without their folder, so that an
# installed tree can be moved.
include(GNUInstallDirs)
set(mf_units lib/systemd/system)
set(mf_private ${CMAKE_INSTALL_LIBEXECDIR}/moefarm)
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)   # build only target `programs`, not the tests
add_custom_target(programs DEPENDS moefarmd moefarm-worker moefarm-runner moefarm-cli moefarm-compile
    moefarm fmoe)

install(TARGETS moefarmd RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT server)

install(FILES deploy/systemd/moefarmd.service
    deploy/systemd/moefarm-backup.service deploy/systemd/moefarm-backup.timer
    DESTINATION ${mf_units} COMPONENT server)

install(DIRECTORY deploy/kubernetes deploy/monitoring DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm COMPONENT
    server)

install(TARGETS moefarm-worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT worker)
install(TARGETS moefarm-compile RUNTIME DESTINATION ${mf_private} COMPONENT worker)
install(TARGETS moefarm-runner moefarm-cli LIBRARY DESTINATION ${mf_private} COMPONENT worker)
install(DIRECTORY python DESTINATION ${mf_private} COMPONENT worker PATTERN __pycache__ EXCLUDE)
foreach(vendor amd nvidia)
    if(TARGET moefarm-hip-${vendor})
        add_dependencies(programs moefarm-hip-${vendor})
        install(TARGETS moefarm-hip-${vendor} LIBRARY DESTINATION ${mf_private} COMPONENT worker)
    endif()
endforeach()
install(FILES deploy/systemd/moefarm-worker@.service DESTINATION ${mf_units} COMPONENT worker)
install(PROGRAMS deploy/slurm/moefarm-workers.sbatch
    DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm/slurm COMPONENT worker)
install(DIRECTORY kernels/gpu/src/ DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm/hip COMPONENT worker
    PATTERN CMakeLists.txt EXCLUDE)
# The headers that a kernel family in a shared object needs: kernels/families/family_plugin.h and the headers
# that it includes.
foreach(header common/base/names common/moe/device_class common/moe/layer common/moe/shape common/moe/status
        common/moe/step common/moe/tensor_spec kernels/core/code kernels/core/device kernels/core/family
        kernels/core/isa kernels/core/l2_partitions kernels/core/quant kernels/core/tensors
        kernels/families/family_plugin)
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${header}.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/moefarm/${folder} COMPONENT worker)
endforeach()

install(TARGETS moefarm RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT cli)
install(FILES deploy/completion/moefarm.bash RENAME moefarm
    DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT cli)
install(FILES deploy/systemd/moefarm-pull@.service deploy/systemd/moefarm-pull@.timer
    DESTINATION ${mf_units} COMPONENT cli)
install(FILES deploy/sysusers/moefarm-pull.conf DESTINATION lib/sysusers.d COMPONENT cli)
install(FILES README.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cli)
install(FILES common/table/models.csv DESTINATION ${CMAKE_INSTALL_DATADIR}/moefarm COMPONENT cli)
install(FILES CONTRIBUTING.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cli)
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT cli
    PATTERN __pycache__ EXCLUDE)

# Debian policy: each package has its copyright file.
foreach(package moefarm-server moefarm-worker moefarm-cli libfmoe-dev)
    string(REGEX REPLACE "^moefarm-|^lib|-dev$" "" component ${package})
    install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} RENAME copyright
        COMPONENT ${component})
endforeach()

# Maintainer scripts stop services before their programs are removed and reload systemd.
foreach(component server worker cli)
    string(TOUPPER ${component} upper)
    set(CPACK_DEBIAN_${upper}_PACKAGE_CONTROL_EXTRA
        ${CMAKE_SOURCE_DIR}/deploy/debian/${component}/prerm
        ${CMAKE_SOURCE_DIR}/deploy/debian/${component}/postrm
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
    "The production operator: a C library that runs fused mixture-of-experts layers from tuned tables.")
# On GPUs, libfmoe loads modules from the worker's package.
set(CPACK_DEBIAN_FMOE_PACKAGE_SUGGESTS moefarm-worker)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_SERVER_DESCRIPTION
    "The coordinator: database, work leases, REST API and status page of a tuning farm.")
set(CPACK_DEBIAN_WORKER_DESCRIPTION
    "The worker: measures kernels on this machine's GPUs or its CPU.")
set(CPACK_DEBIAN_CLI_DESCRIPTION
    "The command line: submits shapes to a farm and fetches tuned tables. With documentation.")
# oneDNN and libcurl are loaded at run time, so dpkg-shlibdeps does not find them.
set(CPACK_DEBIAN_WORKER_PACKAGE_DEPENDS libdnnl2)
set(CPACK_DEBIAN_CLI_PACKAGE_DEPENDS libcurl4)
set(CPACK_DEBIAN_CLI_PACKAGE_RECOMMENDS libdnnl2)
set(CPACK_DEBIAN_FMOE_PACKAGE_RECOMMENDS "libdnnl2, libcurl4")
# The worker loads GPU runtimes at run time if they are installed, so the package does not depend on them.
set(CPACK_DEBIAN_WORKER_PACKAGE_SUGGESTS libamdhip64-5)
# `moefarm tune` starts a farm of its own if these packages are installed.
set(CPACK_DEBIAN_CLI_PACKAGE_SUGGESTS "moefarm-server, moefarm-worker")
include(CPack)
