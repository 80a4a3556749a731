include(JoinSources)

# reshard_floor(NAME DEPENDS … PRIVATE_DEPENDS … [FILES_DOOR]): one static library from all sources of
# lib/reshard/NAME. With FILES_DOOR none of them may ask the operating system about files.
#
# Headers are included by their path from lib/: "reshard/<floor>/<header>.h". A floor may include its own headers and
# those of the floors it depends on, directly or not; the build runs CheckFloor.cmake, which fails on any other.
function(reshard_floor name)
  cmake_parse_arguments(FLOOR "FILES_DOOR" "" "DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/reshard/${name})
  file(GLOB sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  file(GLOB headers CONFIGURE_DEPENDS ${folder}/*.h)
  set(compiled ${sources})
  set(allowed ${name})
  foreach(dependency ${FLOOR_DEPENDS})
    if(dependency MATCHES "^reshard::(.+)$")
      get_target_property(floors reshard_${CMAKE_MATCH_1} RESHARD_FLOORS)
      list(APPEND allowed ${floors})
    endif()
  endforeach()
  list(JOIN allowed "," allowed_text)
  set(checked ${CMAKE_CURRENT_BINARY_DIR}/${name}_floor_checked)
  add_custom_command(OUTPUT ${checked}
                     COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder} -DALLOWED=${allowed_text} -DSTAMP=${checked}
                             -DFILES_DOOR=${FLOOR_FILES_DOOR}
                             -P ${PROJECT_SOURCE_DIR}/lib/cmake/CheckFloor.cmake
                     DEPENDS ${sources} ${headers} ${PROJECT_SOURCE_DIR}/lib/cmake/CheckFloor.cmake
                     COMMENT "Checking the includes of ${name}")
  reshard_join(compiled 99)
  # Else the check, and with it each source, would wait for the libraries of the floors below.
  add_custom_target(check_${name} DEPENDS ${checked})
  add_library(reshard_${name} STATIC ${compiled} ${checked})
  add_library(reshard::${name} ALIAS reshard_${name})
  set_target_properties(reshard_${name} PROPERTIES EXPORT_NAME ${name} CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
                                                   RESHARD_FLOORS "${allowed}")
  target_compile_features(reshard_${name} PUBLIC cxx_std_20)
  target_include_directories(reshard_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(reshard_${name} PUBLIC ${FLOOR_DEPENDS} PRIVATE ${FLOOR_PRIVATE_DEPENDS})
  reshard_warnings(reshard_${name})
  install(TARGETS reshard_${name} EXPORT reshardTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

# reshard_join(LIST COUNT): with RESHARD_UNITY, replaces the sources in the variable LIST by files that join COUNT of
# them, or all where that is fewer.
function(reshard_join list_name count)
  if(NOT RESHARD_UNITY)
    return()
  endif()
  set(left ${${list_name}})
  list(FILTER left EXCLUDE REGEX "_simd\\.cpp$")  # which compile themselves once per instruction set
  set(joined_sources ${${list_name}})
  list(REMOVE_ITEM joined_sources ${left})
  while(left)
    list(SUBLIST left 0 ${count} batch)
    list(REMOVE_ITEM left ${batch})
    list(GET batch 0 first)
    cmake_path(RELATIVE_PATH first BASE_DIRECTORY ${PROJECT_SOURCE_DIR})
    set(joined ${PROJECT_BINARY_DIR}/joined/${first})
    join_sources(${joined} ${batch})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${batch})
    list(APPEND joined_sources ${joined})
  endwhile()
  set(${list_name} ${joined_sources} PARENT_SCOPE)
endfunction()

# reshard_precompile(TARGET …): target_precompile_headers, where they are wanted; few sources in all have no use for them.
# A target that reuses those of another must have its flags, too.
function(reshard_precompile target)
  if(RESHARD_PRECOMPILE_HEADERS AND NOT RESHARD_UNITY)
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
