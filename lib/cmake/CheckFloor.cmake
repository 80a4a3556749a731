# Fails if a file of FOLDER includes a header of a floor that is not in ALLOWED, or of a room of its own floor that
# stands after its own in ROOMS (both comma-separated), or, with FILES_DOOR, asks the operating system about files or
# opens a store. Touches STAMP. Run with cmake -P.
cmake_minimum_required(VERSION 3.25)  # for IN_LIST
string(REPLACE "," ";" allowed ${ALLOWED})
# What std::filesystem offers beyond paths, which are names: any call of it in lower case, in either spelling; what else
# opens files; and the stores that are a Files or a Storage.
string(JOIN "|" local_calls
       "filesystem::[a-z_]+\\(" "fs::[a-z_]+\\(" "directory_iterator" "directory_entry" "filesystem_error"
       "[io]fstream" "fopen\\(" "local_directories\\(" "local_storage\\(" "[^a-z_]all_files\\(" "open_storage\\("
       "[^a-z_]::(open|stat|lstat|access|mkdir|mkdtemp|rmdir|rename|renameat2|unlink|chmod|flock|statvfs|fsync|syncfs)\\(")
string(REPLACE "," ";" rooms "${ROOMS}")
get_filename_component(floor ${FOLDER} NAME)
file(GLOB_RECURSE files ${FOLDER}/*.h ${FOLDER}/*.cpp)
foreach(file ${files})
  # The floor's own folder, which is no room, comes last.
  file(RELATIVE_PATH path ${FOLDER} ${file})
  get_filename_component(room "${path}" DIRECTORY)
  list(FIND rooms "${room}" number)
  if(room AND number EQUAL -1)
    message(FATAL_ERROR "${file}: the floor ${floor} has the rooms ${ROOMS}, and not ${room}")
  endif()
  file(STRINGS ${file} includes REGEX "^#include \"reshard/")
  foreach(include ${includes})
    string(REGEX MATCH "^#include \"reshard/([a-z_]+)/(([a-z_]+)/)?" matched "${include}")
    if(NOT CMAKE_MATCH_1 IN_LIST allowed)
      message(FATAL_ERROR "${file}: ${include}: this floor may include only from: ${ALLOWED}")
    endif()
    if(room AND CMAKE_MATCH_1 STREQUAL floor)
      list(FIND rooms "${CMAKE_MATCH_3}" included)
      if(included EQUAL -1 OR included GREATER number)
        message(FATAL_ERROR "${file}: ${include}: the room ${room} may include only from those before it of: ${ROOMS}")
      endif()
    endif()
  endforeach()
  if(FILES_DOOR)
    file(STRINGS ${file} calls REGEX "${local_calls}")
    list(FILTER calls EXCLUDE REGEX "::path\\(")
    if(calls)
      message(FATAL_ERROR "${file}: this floor takes its files from a reshard::Files or Storage: ${calls}")
    endif()
  endif()
endforeach()
file(TOUCH ${STAMP})
