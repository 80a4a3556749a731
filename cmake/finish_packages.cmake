# CPack runs this between installing and packing, for what Debian wants otherwise than `cmake --install`: compressed
# manual pages, changelogs, zsh's completions where Debian's zsh looks, the copyright, and archives without debug symbols.
#
# CPACK_RESHARD_LICENSES may name a folder with the licenses of what the program contains, as scripts/release.sh collects them.
get_filename_component(source ${CMAKE_CURRENT_LIST_DIR} DIRECTORY)
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # of SOURCE_DATE_EPOCH, if that is set
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} upper)
  set(name ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
  set(share ${CPACK_TEMPORARY_DIRECTORY}/${component}/usr/share)
  set(doc ${share}/doc/${name})

  set(copyright "Copyright 2026, the developers of reshard\nLicense: Apache-2.0. On Debian systems, the text is in /usr/share/common-licenses/Apache-2.0.\n")
  if(component STREQUAL "program" AND CPACK_RESHARD_LICENSES)
    string(APPEND copyright "\nThe program contains code of these packages of Debian, whose copyright files follow.\n")
    file(GLOB licenses ${CPACK_RESHARD_LICENSES}/*)
    foreach(license ${licenses})
      get_filename_component(title ${license} NAME)
      file(READ ${license} text)
      string(APPEND copyright "\n== ${title}\n\n${text}")
    endforeach()
  endif()
  file(WRITE ${doc}/copyright "${copyright}")
  configure_file(${source}/CHANGELOG.md ${doc}/changelog COPYONLY)
  file(WRITE ${doc}/changelog.Debian
       "${name} (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
       "  * See changelog.gz.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  if(EXISTS ${share}/zsh)
    file(RENAME ${share}/zsh/site-functions ${share}/zsh/vendor-completions)
  endif()
  file(GLOB compressed ${doc}/changelog* ${share}/man/*/*)
  execute_process(COMMAND gzip -9n ${compressed} COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE archives ${CPACK_TEMPORARY_DIRECTORY}/${component}/*.a)
  if(archives)
    execute_process(COMMAND strip --strip-debug --remove-section=.comment ${archives} COMMAND_ERROR_IS_FATAL ANY)
  endif()
endforeach()
