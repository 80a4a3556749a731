// Zip archives: every entry must lie inside the file.

#include <cstdlib>

#include "fuzz/time_limit.h"
#include "reshard/formats/zip/zip.h"
#include "reshard/io/memory_files.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* bytes, std::size_t size) {
  const reshard::test::TimeLimit limit(size);
  const reshard::MemorySource source(std::string(reinterpret_cast<const char*>(bytes), size));
  try {
    const reshard::ZipDirectory directory = reshard::read_zip(source, "f");
    for (const reshard::ZipEntry& entry : directory.entries()) {
      if (entry.offset_bytes > size || entry.size_bytes > size - entry.offset_bytes) std::abort();
      if (directory.find(entry.name) != &entry) std::abort();
    }
  } catch (const reshard::Error& error) {
    // A read past the end is the reader's mistake: it must have looked at the size before.
    if (error.kind() != reshard::ErrorKind::kBadInput && error.kind() != reshard::ErrorKind::kUnsupported) std::abort();
  }
  return 0;
}
