# reshard_floor(NAME SOURCES … DEPENDS …): one static library for one folder of lib/.
#
# Headers are included as "reshard/<floor>/<header>.h". Each floor has an include root of its own in the build tree, with
# one link to its folder, so that a file sees its own floor and those it depends on and an include against the order
# fails.
function(reshard_floor name)
  cmake_parse_arguments(FLOOR "" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(include_root ${PROJECT_BINARY_DIR}/floors/${name})
  file(MAKE_DIRECTORY ${include_root}/reshard)
  file(CREATE_LINK ${CMAKE_CURRENT_SOURCE_DIR}/${name} ${include_root}/reshard/${name} SYMBOLIC)
  list(TRANSFORM FLOOR_SOURCES PREPEND ${name}/)
  add_library(reshard_${name} STATIC ${FLOOR_SOURCES})
  add_library(reshard::${name} ALIAS reshard_${name})
  set_target_properties(reshard_${name} PROPERTIES EXPORT_NAME ${name} CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_features(reshard_${name} PUBLIC cxx_std_20)
  target_include_directories(reshard_${name} PUBLIC $<BUILD_INTERFACE:${include_root}>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(reshard_${name} PUBLIC ${FLOOR_DEPENDS} PRIVATE ${FLOOR_PRIVATE_DEPENDS})
  reshard_warnings(reshard_${name})
  install(TARGETS reshard_${name} EXPORT reshardTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}/${name} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/reshard
          FILES_MATCHING PATTERN "*.h" PATTERN "families" EXCLUDE)
endfunction()

# reshard_precompile(TARGET …): target_precompile_headers, where they are wanted. A target that reuses those of another
# must have its flags, too.
function(reshard_precompile target)
  if(RESHARD_PRECOMPILE_HEADERS)
    target_precompile_headers(${target} ${ARGN})
    # Clang's own check of their time would keep ccache from knowing them again.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>)
  endif()
endfunction()

function(reshard_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
                                           -Wno-missing-field-initializers)
  # GCC 12 warns of an overlap in "text" + std::string where there is none (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(RESHARD_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
