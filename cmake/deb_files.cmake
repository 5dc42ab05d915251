# cpack runs this file on the installed files before it packs them. It moves and renames them as Debian's policy
# requires.
file(GLOB roots ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/usr ${CPACK_TEMPORARY_DIRECTORY}/usr)
list(REMOVE_DUPLICATES roots)
list(GET roots 0 root)

# Debian's zsh does not read /usr/share/zsh/site-functions.
file(RENAME ${root}/share/zsh/site-functions ${root}/share/zsh/vendor-completions)

set(doc ${root}/share/doc/specdec)
file(READ ${CPACK_SPECDEC_SOURCE}/CHANGELOG.md changes)
string(REGEX MATCH "\n## ${CPACK_PACKAGE_VERSION} \\(([0-9-]+)\\)" unused "${changes}")
if(CMAKE_MATCH_1)
  execute_process(COMMAND date --utc -R --date=${CMAKE_MATCH_1} OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE)
else()  # this version has not been released yet
  execute_process(COMMAND date --utc -R OUTPUT_VARIABLE date OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
set(release ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
file(WRITE ${doc}/changelog.Debian "specdec (${release}) unstable; urgency=medium\n\n  * See changelog.gz.\n\n"
  " -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
file(WRITE ${doc}/changelog "${changes}")
file(WRITE ${doc}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
  "Upstream-Name: specdec\n\nFiles: *\nCopyright: the specdec authors\nLicense: Apache-2.0\n"
  " The text is in /usr/share/common-licenses/Apache-2.0. The components that are linked in are listed in\n"
  " /usr/share/doc/specdec/sbom.cdx.json, and their licences are in /usr/share/doc/specdec/licences.\n")
file(REMOVE ${doc}/LICENSE)

file(GLOB pages ${root}/share/man/man1/*.1)
execute_process(COMMAND gzip -9 -n -f ${pages} ${doc}/changelog ${doc}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND chmod -R u=rwX,go=rX ${root} COMMAND_ERROR_IS_FATAL ANY)
