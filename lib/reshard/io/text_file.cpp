#include "reshard/io/text_file.h"

#include <span>

#include "reshard/base/error.h"
#include "reshard/base/json.h"
#include "reshard/base/strings.h"

namespace reshard {

std::string read_text_file(Files& files, const std::filesystem::path& path, std::uint64_t cap_bytes) {
  const auto source = files.open(path);
  if (source->size_bytes() > cap_bytes)
    throw Error(ErrorKind::kBadInput, "is " + format_bytes(source->size_bytes()) + ", which is more than the " +
                                          format_bytes(cap_bytes) + " that such a file may have")
        .in(path);
  std::string text(source->size_bytes(), '\0');
  source->read_at(0, std::as_writable_bytes(std::span(text)));
  return text;
}

Json read_json_file(Files& files, const std::filesystem::path& path, std::uint64_t cap_bytes, JsonDialect dialect) {
  const std::string text = read_text_file(files, path, cap_bytes);
  if (text.starts_with("version https://git-lfs"))
    throw Error(ErrorKind::kBadInput, "is a git-lfs pointer, not the file itself")
        .in(path)
        .hint("run `git lfs pull` in the model's repository");
  return parse_json(text, path, dialect);
}

}  // namespace reshard
