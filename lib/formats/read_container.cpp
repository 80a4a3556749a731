#include "reshard/formats/read_container.h"

#include "reshard/base/error.h"
#include "reshard/formats/safetensors.h"

namespace reshard {

Container read_container(const std::filesystem::path& path, Format format) {
  switch (format) {
    case Format::kSafetensors: return read_safetensors(path);
    case Format::kPytorch:
    case Format::kXser: break;
  }
  throw Error(ErrorKind::kUnsupported, "torch").in(path);
}

Format format_of_file(const std::filesystem::path&) {
  return Format::kSafetensors;
}

}  // namespace reshard
