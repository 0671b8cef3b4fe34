# SPDX-License-Identifier: Apache-2.0
# The Debian package: cpack -G DEB in the folder of a release build. `cmake --install` installs the
# same files for the tarball (deploy/wheel.sh).
include(GNUInstallDirs)
set(here ${CMAKE_CURRENT_LIST_DIR})

install(FILES ${here}/forebay.yaml DESTINATION /etc/forebay)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/systemd/forebay.service
              ${CMAKE_SOURCE_DIR}/deploy/systemd/forebay.socket
        DESTINATION lib/systemd/system)
install(FILES ${here}/copyright DESTINATION share/doc/forebay)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/helm/forebay/files/forebay.rules.yaml
              ${CMAKE_SOURCE_DIR}/deploy/helm/forebay/files/forebay-engine.rules.yaml
              ${CMAKE_SOURCE_DIR}/deploy/prometheus/forebay.test.yaml
              ${CMAKE_SOURCE_DIR}/deploy/helm/forebay/files/grafana/forebay.json
              ${CMAKE_SOURCE_DIR}/deploy/systemd/other-disk.conf
              ${CMAKE_SOURCE_DIR}/conf/forebay.yaml
        DESTINATION share/doc/forebay/examples)
# The runbook that alerts link to, and the pages that it links to.
install(FILES ${CMAKE_SOURCE_DIR}/deploy/prometheus/README.md
        DESTINATION share/doc/forebay/prometheus)
install(FILES ${CMAKE_SOURCE_DIR}/deploy/haproxy/README.md
              ${CMAKE_SOURCE_DIR}/deploy/helm/forebay/files/haproxy.cfg
        DESTINATION share/doc/forebay/haproxy)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/deploy/guide
        DESTINATION share/doc/forebay
        FILES_MATCHING PATTERN "*.md" PATTERN "page.png")
install(FILES ${CMAKE_SOURCE_DIR}/deploy/seccomp/forebay.json DESTINATION share/forebay/seccomp)
install(PROGRAMS ${CMAKE_SOURCE_DIR}/deploy/slurm/prolog.sh
                 ${CMAKE_SOURCE_DIR}/deploy/slurm/epilog.sh
        DESTINATION share/forebay/slurm)
install(SCRIPT ${here}/links.cmake)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/printed/changelog.gz
                   COMMAND gzip -9nc ${here}/changelog > ${CMAKE_BINARY_DIR}/printed/changelog.gz
                   DEPENDS ${here}/changelog VERBATIM)
add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/printed/forebay.8.gz
                   COMMAND gzip -9nc ${CMAKE_SOURCE_DIR}/deploy/systemd/forebay.8
                           > ${CMAKE_BINARY_DIR}/printed/forebay.8.gz
                   DEPENDS ${CMAKE_SOURCE_DIR}/deploy/systemd/forebay.8 VERBATIM)
add_custom_target(pressed ALL DEPENDS ${CMAKE_BINARY_DIR}/printed/changelog.gz
                                      ${CMAKE_BINARY_DIR}/printed/forebay.8.gz)
install(FILES ${CMAKE_BINARY_DIR}/printed/changelog.gz DESTINATION share/doc/forebay)
install(FILES ${CMAKE_BINARY_DIR}/printed/forebay.8.gz DESTINATION share/man/man8)

set(CPACK_PACKAGE_NAME forebay)
set(CPACK_PACKAGE_VENDOR Forebay)
set(CPACK_PACKAGE_CONTACT "Forebay maintainers <maintainers@forebay.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "S3 read cache on local disks for training jobs")
set(CPACK_PACKAGE_DESCRIPTION
    "Speaks S3 on localhost, answers ranged reads from a block cache on NVMe and
asks the object store once for each byte. Every other S3 operation goes
through. Clients need no change but their endpoint.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS ca-certificates)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${here}/conffiles ${here}/postinst ${here}/prerm ${here}/postrm)
include(CPack)
