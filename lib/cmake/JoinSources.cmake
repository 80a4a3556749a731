# join_sources(OUTPUT SOURCE…): writes OUTPUT, the text of all SOURCES as one file, which compiles several times faster
# than they do one by one. Files may have the same name for something in their anonymous namespaces: it then goes by
# another name, from the end of the second's includes to the end of that file.
#
# Names are found by their place, so sources must be formatted: what an anonymous namespace declares begins a line.

# anonymous_names(TEXT NAMES): what the anonymous namespaces of TEXT declare: functions, types, constants.
function(anonymous_names text names)
  set(found "")
  string(FIND "${text}" "\nnamespace {\n" begin)
  while(NOT begin EQUAL -1)
    string(SUBSTRING "${text}" ${begin} -1 text)
    string(FIND "${text}" "\n}  // namespace\n" end)
    string(SUBSTRING "${text}" 0 ${end} scope)
    string(SUBSTRING "${text}" ${end} -1 text)
    string(FIND "${text}" "\nnamespace {\n" begin)
    set(type "[A-Za-z][A-Za-z0-9_:<>,&*() ]*[ &*]")
    string(REGEX MATCHALL "\n${type}[a-z][a-z0-9_]*\\(" functions "${scope}")
    string(REGEX MATCHALL "\n(struct|class|enum|enum class|using) [A-Z][A-Za-z0-9]*" types "${scope}")
    string(REGEX MATCHALL "\n${type}k[A-Z][A-Za-z0-9_]*" constants "${scope}")
    foreach(declaration ${functions} ${types} ${constants})
      string(REGEX MATCH "([A-Za-z0-9_]+)\\(?$" matched "${declaration}")
      list(APPEND found ${CMAKE_MATCH_1})
    endforeach()
  endwhile()
  list(REMOVE_DUPLICATES found)
  set(${names} ${found} PARENT_SCOPE)
endfunction()

function(join_sources output)
  set(taken "")
  set(number 0)
  set(joined "")
  foreach(source ${ARGN})
    math(EXPR number "${number} + 1")
    file(READ ${source} text)
    string(PREPEND text "\n")  # for a search that finds the first line as well
    string(FIND "${text}" "\n#include" last_include REVERSE)
    string(SUBSTRING "${text}" 0 ${last_include} head)
    string(SUBSTRING "${text}" ${last_include} -1 text)
    string(REGEX MATCH "^\n[^\n]*\n" include "${text}")
    string(LENGTH "${include}" length)
    string(SUBSTRING "${text}" ${length} -1 body)
    string(APPEND head "${include}")
    string(REGEX MATCHALL "\n" lines "${head}")
    list(LENGTH lines line)  # of the body's begin

    anonymous_names("${body}" names)
    set(renamed "")
    set(restored "")
    foreach(name ${names})
      # A constant would be shadowed by locals of other files; but there may be an enumerator of that name.
      if(name IN_LIST taken OR (name MATCHES "^k[A-Z]" AND NOT body MATCHES "::${name}[^A-Za-z0-9_]"))
        string(APPEND renamed "#define ${name} ${name}_${number}\n")
        string(APPEND restored "#undef ${name}\n")
      endif()
    endforeach()
    list(APPEND taken ${names})
    string(APPEND joined "#line 1 \"${source}\"${head}${renamed}#line ${line} \"${source}\"\n${body}${restored}")
  endforeach()
  file(WRITE ${output}.new "${joined}")
  file(COPY_FILE ${output}.new ${output} ONLY_IF_DIFFERENT)
  file(REMOVE ${output}.new)
endfunction()
