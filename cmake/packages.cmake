# Debian packages, made in a build directory by
#
#   cpack -G DEB -D CPACK_COMPONENTS_ALL=program        reshard: program, plug-ins for MPI, manual page, completions
#   cpack -G DEB -D CPACK_COMPONENTS_ALL=development    libreshard-dev: static libraries, headers, CMake package
#
# scripts/release.sh runs it with the preset `dist`, whose program needs no other library than libc. That of another build
# depends on the libraries that it links, those of MPI included.
set(CPACK_PACKAGE_CONTACT "reshard developers <reshard@localhost>")  # as in SECURITY.md, no address is known
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
                                                WORLD_EXECUTE)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/finish_packages.cmake)

set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")  # the first line of each description
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME reshard)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
if(RESHARD_STATIC)
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS "libc6 (>= 2.34), libgcc-s1 (>= 4.2)")  # plug-ins need an MPI, if one is used
else()
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
endif()
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "openmpi-bin | mpich")
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "converter for sharded and whole checkpoints of large models
Reads and writes the sharded files of trainers and servers, one per
accelerator, and the Hugging Face directories that people exchange. Changes
the mesh, the file format and the dtype in the same pass.")

# The archives contain inline code of these, compiled against the headers that are installed here.
function(reshard_pinned package result)
  execute_process(COMMAND dpkg-query --show "--showformat=\${source:Upstream-Version}\n" ${package} OUTPUT_VARIABLE version
                  ERROR_QUIET RESULT_VARIABLE failed)
  set(${result} ${package} PARENT_SCOPE)
  if(failed EQUAL 0)
    string(REGEX REPLACE "\n.*" "" version "${version}")  # those of other architectures
    set(${result} "${package} (>= ${version}), ${package} (<< ${version}.)" PARENT_SCOPE)
  endif()
endfunction()
set(depends libdeflate-dev libssl-dev libxxhash-dev pkgconf zlib1g-dev)
if(RESHARD_ZSTD)
  list(APPEND depends libzstd-dev)
endif()
foreach(package libfmt-dev libhwy-dev libre2-dev nlohmann-json3-dev)
  reshard_pinned(${package} pinned)
  list(APPEND depends ${pinned})
endforeach()
list(JOIN depends ", " depends)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libreshard-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${depends}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS cmake)
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "library that converts checkpoints of large models
Static libraries, headers and a CMake package: find_package(reshard). They are
compiled for one release of the distribution: they need its versions of fmt,
Highway, RE2 and nlohmann-json.")
include(CPack)
