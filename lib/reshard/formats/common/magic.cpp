#include "reshard/formats/common/magic.h"

#include <algorithm>
#include <cctype>

namespace reshard {
namespace {

/// Tensor formats whose first bytes no safetensors or torch file can have: as a header length, each exceeds the limit
/// of safetensors.
struct ForeignFormat {
  std::string_view magic;
  const char* what;
  const char* hint;
};
constexpr const char* kOriginal = "give the Hugging Face checkpoint that it was converted from";
constexpr ForeignFormat kForeignFormats[] = {
    {"GGUF", "a GGUF file, as llama.cpp reads it", kOriginal},
    {"tjgg", "a GGML file, the older form of GGUF", kOriginal},
    {"fmgg", "a GGML file, the older form of GGUF", kOriginal},
    {"lmgg", "a GGML file, the older form of GGUF", kOriginal},
    {"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes it", "load it there and save it as safetensors"},
    {"\x93NUMPY", "a NumPy file with one array", "load it with numpy.load and save it as safetensors"},
};

}  // namespace

std::string first_bytes(const Source& source, std::size_t most) {
  std::string start(std::min<std::uint64_t>(source.size_bytes(), most), '\0');
  source.read_at(0, std::as_writable_bytes(std::span(start)));
  return start;
}

void refuse_foreign(std::string_view start, const std::filesystem::path& path) {
  if (start.starts_with("version https://git-lfs"))
    throw Error(ErrorKind::kBadInput, "is a git-lfs pointer, not the file itself")
        .in(path)
        .hint("run `git lfs pull` in the model's repository");
  const std::size_t first = start.find_first_not_of(" \t\r\n");
  std::string tag(first == start.npos ? std::string_view() : start.substr(first, 9));
  std::transform(tag.begin(), tag.end(), tag.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (tag.starts_with("<html") || tag.starts_with("<!doctype"))
    throw Error(ErrorKind::kBadInput, "is an HTML page, not a tensor file")
        .in(path)
        .hint("the download returned an error or login page; fetch the file again");
  constexpr std::size_t kHeaderOfSafetensors = 8;
  if (start.starts_with("\x1F\x8B\x08") && start.size() > kHeaderOfSafetensors && start[kHeaderOfSafetensors] != '{')
    throw Error(ErrorKind::kBadInput, "is compressed with gzip")
        .in(path)
        .hint("unpack it first: gzip -d < FILE > OTHER");
  const bool is_text =
      std::none_of(start.begin(), start.end(), [](unsigned char c) { return std::iscntrl(c) && !std::isspace(c); });
  if (tag.starts_with('{') && is_text)
    throw Error(ErrorKind::kBadInput, "is JSON, not a tensor file")
        .in(path)
        .hint("give the directory that contains it");
  for (const ForeignFormat& format : kForeignFormats)
    if (start.starts_with(format.magic))
      throw Error(ErrorKind::kUnsupported, std::string("is ") + format.what + ", which is not supported")
          .in(path)
          .hint(format.hint);
}

}  // namespace reshard
