#include "reshard/formats/read_container.h"

#include <string>

#include "reshard/formats/common/magic.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/io/read_each.h"

namespace reshard {
namespace {

constexpr std::size_t kFirstBytes = 9;  // the length of a safetensors header, and its first character

}  // namespace

Container read_container(Files& files, const std::filesystem::path& path, Format format) {
  const FileStamp stamp = files.stamp(path);
  Container container;
  switch (format) {
    case Format::kSafetensors: container = read_safetensors(*open_weights(files, path), path); break;
    case Format::kPytorch: container = read_torch(*open_weights(files, path), path); break;
    case Format::kXser: return read_xser(files, path);  // stamps its files itself
  }
  container.files.front().stamp = stamp;
  return container;
}

std::vector<std::future<Container>> read_containers(Files& files, std::span<const std::filesystem::path> paths,
                                                    Format format) {
  return read_each(paths.size(), [&](std::size_t i) { return read_container(files, paths[i], format); });
}

Format format_of_file(Files& files, const std::filesystem::path& path) {
  if (is_xser(files, path)) return Format::kXser;
  const std::string start = first_bytes(*files.open(path), kFirstBytes);
  const bool zip = start.starts_with("PK\x03\x04");
  const bool pickle = start.starts_with("\x80\x02\x8a");  // the legacy stream: protocol 2, then a long number
  if (start.size() == kFirstBytes && start.back() == '{' && !zip) return Format::kSafetensors;
  const bool named = path.extension() == ".pt" || path.extension() == ".pth" || path.extension() == ".bin";
  return zip || pickle || named ? Format::kPytorch : Format::kSafetensors;
}

}  // namespace reshard
