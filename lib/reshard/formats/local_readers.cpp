#include "reshard/formats/local_readers.h"

#include "reshard/formats/read_container.h"
#include "reshard/formats/safetensors.h"
#include "reshard/formats/torch_file.h"
#include "reshard/formats/xser.h"
#include "reshard/io/local_storage.h"

namespace reshard {

Container read_safetensors(const std::filesystem::path& path) {
  return read_safetensors(*local_storage().open(path), path);
}

TorchFile read_torch_file(const std::filesystem::path& path) {
  return read_torch_file(*local_storage().open(path), path);
}

Container read_torch(const std::filesystem::path& path) {
  return read_torch(*local_storage().open(path), path);
}

Container read_xser(const std::filesystem::path& path) {
  return read_xser(local_storage(), path);
}

bool is_xser(const std::filesystem::path& path) {
  return is_xser(local_storage(), path);
}

Container read_container(const std::filesystem::path& path, Format format) {
  return read_container(local_storage(), path, format);
}

Format format_of_file(const std::filesystem::path& path) {
  return format_of_file(local_storage(), path);
}

}  // namespace reshard
