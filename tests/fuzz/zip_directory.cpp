// Zip archives: every entry must lie inside the file.

#include "fuzz/target.h"
#include "reshard/formats/zip/zip.h"

void reshard::test::fuzz(std::string_view input) {
  const ZipDirectory directory = read_zip(MemorySource(std::string(input)), "f");
  for (const ZipEntry& entry : directory.entries()) {
    check(entry.offset_bytes <= input.size() && entry.size_bytes <= input.size() - entry.offset_bytes);
    check(directory.find(entry.name) == &entry);
  }
}
