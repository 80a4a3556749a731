#include <dlfcn.h>
#include <fmt/format.h>

#include "mpi_ranks.h"
#include "reshard/base/strings.h"

namespace reshard::cli {

const ReshardMpi* open_plugin(const std::filesystem::path& path, std::string& why, int scope) {
  void* library = ::dlopen(path.c_str(), RTLD_NOW | scope);
  void* entry = library == nullptr ? nullptr : ::dlsym(library, "reshard_mpi");
  if (entry == nullptr) {
    const char* text = ::dlerror();
    why = text == nullptr ? "it cannot be loaded" : printable(text);
    return nullptr;
  }
  const ReshardMpi* plugin = reinterpret_cast<ReshardMpiEntry>(entry)();
  if (plugin != nullptr && plugin->abi == kReshardMpiAbi) return plugin;
  why = fmt::format("{} belongs to another version of reshard", printable(path.string()));
  return nullptr;
}

}  // namespace reshard::cli
