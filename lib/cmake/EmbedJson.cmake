# Writes OUTPUT: a C++ file with SYMBOL, which holds every JSON file of INPUT_DIR. Run with cmake -P.
file(GLOB files ${INPUT_DIR}/*.json)
list(SORT files)
set(entries "")
foreach(file ${files})
  get_filename_component(name ${file} NAME)
  file(READ ${file} json)
  string(APPEND entries "    {\"${name}\", R\"json(${json})json\"sv},\n")
endforeach()
file(WRITE ${OUTPUT} "#include \"reshard/specs/family/builtin_files.h\"

namespace reshard {
namespace {

using namespace std::string_view_literals;  // the compiler would count the characters of a pointer one by one

constexpr BuiltinFile kFiles[] = {
${entries}};

}  // namespace

const std::span<const BuiltinFile> ${SYMBOL} = kFiles;

}  // namespace reshard
")
