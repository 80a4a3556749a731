# Fails if a file of FOLDER includes a header of a floor that is not in ALLOWED (comma-separated). Touches STAMP. Run
# with cmake -P.
cmake_minimum_required(VERSION 3.25)  # for IN_LIST
string(REPLACE "," ";" allowed ${ALLOWED})
file(GLOB files ${FOLDER}/*.h ${FOLDER}/*.cpp)
foreach(file ${files})
  file(STRINGS ${file} includes REGEX "^#include \"reshard/")
  foreach(include ${includes})
    string(REGEX MATCH "^#include \"reshard/([a-z_]+)/" matched "${include}")
    if(NOT CMAKE_MATCH_1 IN_LIST allowed)
      message(FATAL_ERROR "${file}: ${include}: this floor may include only from: ${ALLOWED}")
    endif()
  endforeach()
endforeach()
file(TOUCH ${STAMP})
