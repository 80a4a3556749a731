#include "reshard/formats/magic.h"

#include <algorithm>
#include <cctype>

namespace reshard {

std::string first_bytes(const Source& source, std::size_t most) {
  std::string start(std::min<std::uint64_t>(source.size_bytes(), most), '\0');
  source.read_at(0, std::as_writable_bytes(std::span(start)));
  return start;
}

void refuse_pointer_or_page(std::string_view start, const std::filesystem::path& path) {
  if (start.starts_with("version https://git-lfs"))
    throw Error(ErrorKind::kBadInput, "is a git-lfs pointer, not the file itself")
        .in(path)
        .hint("run `git lfs pull` in the model's repository");
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  std::string tag(first == start.npos ? std::string_view() : start.substr(first, 9));
  std::transform(tag.begin(), tag.end(), tag.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (tag.starts_with("<html") || tag.starts_with("<!doctype"))
    throw Error(ErrorKind::kBadInput, "is an HTML page, not a file of tensors")
        .in(path)
        .hint("the download brought an error or login page; fetch the file again");
}

}  // namespace reshard
