#include "reshard/io/open_store.h"

#include <fmt/format.h>

#include "reshard/base/pattern.h"
#include "reshard/io/local_storage.h"

namespace reshard {
namespace {

constexpr const char* kFetch = "fetch a model of the Hugging Face Hub first: hf download ";

/// Programs that copy between a store and a local directory, by scheme.
constexpr std::pair<std::string_view, std::string_view> kCopiers[] = {
    {"s3", "aws s3 sync"}, {"gs", "gcloud storage rsync -r"}, {"az", "azcopy sync"}};

Error no_store(std::string_view scheme, const std::filesystem::path& path) {
  Error error(ErrorKind::kUnsupported, fmt::format("{}:// is not supported: paths are local", scheme));
  const Pattern hub_address(R"(^(hf:/+|https?:/+(www\.)?huggingface\.co/)([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*).*$)");
  if (hub_address.found_in(path.string()))
    return std::move(error.in(path).hint(kFetch + hub_address.replace_all(path.string(), "$3")));
  std::string hint = "read from a local copy, or write to a local directory and copy that";
  for (const auto& [name, copier] : kCopiers)
    if (name == scheme) hint += fmt::format(": {}", copier);
  if (path.string().find("://") == std::string::npos) hint = "a local path of this name is ./" + path.string();
  return std::move(error.in(path).hint(std::move(hint)));
}

}  // namespace

std::string_view scheme_of(const std::filesystem::path& path) {
  const std::string_view text = path.native();
  const std::size_t end = text.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789+-.");
  const bool is_scheme = end != std::string_view::npos && end > 1 && text.substr(end, 2) == ":/";  // not C:/
  return text.substr(0, is_scheme ? end : 0);
}

Storage& open_storage(const std::filesystem::path& path) {
  if (const auto scheme = scheme_of(path); !scheme.empty()) throw no_store(scheme, path);
  return local_storage();
}

Error nothing_at(Files& files, const std::filesystem::path& path) {
  Error error(ErrorKind::kBadInput, "no such file or directory");
  const Pattern hub_name(R"(^[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*$)");
  if (hub_name.found_in(path.string()) && !files.exists(path.parent_path())) error.hint(kFetch + path.string());
  return error.in(path);
}

Files& AllFiles::store_of(const std::filesystem::path& path) const {
  const auto store = stores_.find(scheme_of(path));
  return store == stores_.end() ? open_storage(path) : *store->second;
}

Files& all_files() {
  static AllFiles files({});
  return files;
}

}  // namespace reshard
