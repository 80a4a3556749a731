#include "reshard/formats/read_container.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "reshard/formats/safetensors.h"
#include "reshard/formats/torch_file.h"
#include "reshard/formats/xser.h"
#include "reshard/io/storage.h"

namespace reshard {

Container read_container(const std::filesystem::path& path, Format format) {
  const FileStamp stamp = stamp_of(path);
  Container container;
  switch (format) {
    case Format::kSafetensors: container = read_safetensors(path); break;
    case Format::kPytorch: container = read_torch(path); break;
    case Format::kXser: container = read_xser(path); break;
  }
  container.files.front().stamp = stamp;
  return container;
}

Format format_of_file(const std::filesystem::path& path) {
  if (is_xser(path)) return Format::kXser;
  const auto source = local_storage().open(path);
  std::array<char, 9> start{};
  const std::size_t bytes = std::min<std::uint64_t>(source->size_bytes(), start.size());
  source->read_at(0, std::as_writable_bytes(std::span(start.data(), bytes)));
  const std::string_view text(start.data(), bytes);
  const bool zip = text.starts_with("PK\x03\x04");
  const bool pickle = text.starts_with("\x80\x02\x8a");  // the legacy stream: protocol 2, a long number
  if (text.size() == start.size() && text.back() == '{' && !zip) return Format::kSafetensors;
  const bool named = path.extension() == ".pt" || path.extension() == ".pth" || path.extension() == ".bin";
  return zip || pickle || named ? Format::kPytorch : Format::kSafetensors;
}

}  // namespace reshard
