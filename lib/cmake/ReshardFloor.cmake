# Where several sources are compiled as one (CMAKE_UNITY_BUILD, as .ci/run has it), those that have a name of their own
# in common with others are left out of it.
function(reshard_apart)
  set_source_files_properties(${ARGN} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# reshard_floor(NAME DEPENDS … PRIVATE_DEPENDS … ROOMS … [FILES_DOOR]): one static library from all sources
# of lib/reshard/NAME and its rooms, the folders in it. With FILES_DOOR none of them may ask the operating system about files.
#
# Headers are included by their path from lib/: "reshard/<floor>/<room>/<header>.h". A floor may include its own headers
# and those of the floors it depends on, directly or not; a room those of the rooms before it in ROOMS, and the floor's
# own folder those of all rooms. The build runs CheckFloor.cmake, which fails on any other include.
function(reshard_floor name)
  cmake_parse_arguments(FLOOR "FILES_DOOR" "" "DEPENDS;PRIVATE_DEPENDS;ROOMS" ${ARGN})
  set(folder ${CMAKE_CURRENT_SOURCE_DIR}/reshard/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cpp)
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS ${folder}/*.h)
  set(allowed ${name})
  foreach(dependency ${FLOOR_DEPENDS})
    if(dependency MATCHES "^reshard::(.+)$")
      get_target_property(floors reshard_${CMAKE_MATCH_1} RESHARD_FLOORS)
      list(APPEND allowed ${floors})
    endif()
  endforeach()
  list(JOIN allowed "," allowed_text)
  list(JOIN FLOOR_ROOMS "," rooms_text)
  set(checked ${CMAKE_CURRENT_BINARY_DIR}/${name}_floor_checked)
  add_custom_command(OUTPUT ${checked}
                     COMMAND ${CMAKE_COMMAND} -DFOLDER=${folder} -DALLOWED=${allowed_text} -DROOMS=${rooms_text}
                             -DSTAMP=${checked} -DFILES_DOOR=${FLOOR_FILES_DOOR} -P ${PROJECT_SOURCE_DIR}/lib/cmake/CheckFloor.cmake
                     DEPENDS ${sources} ${headers} ${PROJECT_SOURCE_DIR}/lib/cmake/CheckFloor.cmake
                     COMMENT "Checking the includes of ${name}")
  # Else the check, and with it each source, would wait for the libraries of the floors below.
  add_custom_target(check_${name} DEPENDS ${checked})
  add_library(reshard_${name} STATIC ${sources} ${checked})
  add_library(reshard::${name} ALIAS reshard_${name})
  set_target_properties(reshard_${name} PROPERTIES EXPORT_NAME ${name} CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
                                                   RESHARD_FLOORS "${allowed}")
  if(RESHARD_UNITY_SOURCES)  # fewer sources share more of the work
    list(LENGTH sources count)
    math(EXPR batch "(${count} + ${RESHARD_UNITY_SOURCES} - 1) / ${RESHARD_UNITY_SOURCES}")
    set_target_properties(reshard_${name} PROPERTIES UNITY_BUILD_BATCH_SIZE ${batch})
  endif()
  target_compile_features(reshard_${name} PUBLIC cxx_std_20)
  target_include_directories(reshard_${name} PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}>
                                                    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_link_libraries(reshard_${name} PUBLIC ${FLOOR_DEPENDS} PRIVATE ${FLOOR_PRIVATE_DEPENDS})
  reshard_warnings(reshard_${name})
  install(TARGETS reshard_${name} EXPORT reshardTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
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
  # GCC 12 wrongly warns of an overlap in "text" + std::string (its bug 105651).
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)
  endif()
  if(RESHARD_WARNINGS_AS_ERRORS)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
endfunction()
