#include "reshard/io/memory_files.h"

#include <algorithm>

namespace reshard {
namespace {

/// Returns the normalized form of a path: without a trailing slash, and empty for ".".
std::string key_of(const std::filesystem::path& path) {
  std::string key = path.lexically_normal().generic_string();
  if (key.size() > 1 && key.back() == '/') key.pop_back();
  return key == "." ? std::string() : key;
}

Error no_directory(const char* message, std::errc code, const std::filesystem::path& path) {
  return Error(ErrorKind::kBadInput, message).in(path).code(std::make_error_code(code));
}

/// Returns the key of the directory that contains `key`.
std::string parent_of(const std::string& key) {
  const std::size_t slash = key.rfind('/');
  if (slash == std::string::npos) return "";
  return key.substr(0, std::max<std::size_t>(slash, 1));
}

/// Whether `key` is an entry of `directory`.
bool is_child(const std::string& key, const std::string& directory) {
  return key != directory && parent_of(key) == directory;
}

std::string name_of(const std::string& key) {
  return key.substr(key.rfind('/') + 1);
}

}  // namespace

MemorySource::MemorySource(std::string content, std::filesystem::path path)
    : MemorySource(std::make_shared<const std::string>(std::move(content)), std::move(path)) {}

MemorySource::MemorySource(std::shared_ptr<const std::string> content, std::filesystem::path path)
    : content_(std::move(content)), path_(std::move(path)) {}

void MemorySource::read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const {
  if (out.empty()) return;
  if (offset_bytes > content_->size() || out.size() > content_->size() - offset_bytes)
    throw Error(ErrorKind::kIo, "the file ends before the bytes to read").in(path_).at_byte(offset_bytes);
  std::copy_n(content_->data() + offset_bytes, out.size(), reinterpret_cast<char*>(out.data()));
}

void MemoryFiles::write(const std::filesystem::path& path, std::string content) {
  const std::string key = key_of(path);
  const std::lock_guard lock(mutex_);
  if (directories_.contains(key)) throw Error(ErrorKind::kUsage, "is a directory").in(path);
  add_directories(parent_of(key));
  files_[key] = {std::make_shared<const std::string>(std::move(content)), ++writes_};
}

void MemoryFiles::make_directory(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  add_directories(key_of(path));
}

void MemoryFiles::add_directories(std::string key) {
  std::vector<std::string> added;
  for (; !directories_.contains(key); key = parent_of(key)) {
    if (files_.contains(key)) throw Error(ErrorKind::kUsage, "is a file, not a directory").in(key);
    added.push_back(key);
  }
  directories_.insert(added.begin(), added.end());
}

bool MemoryFiles::remove(const std::filesystem::path& path) {
  const std::string key = key_of(path);
  const std::string prefix = key + "/";
  const std::lock_guard lock(mutex_);
  const bool existed = find(key) != FileKind::kNone;
  const auto is_below = [&](const std::string& other) { return other == key || other.starts_with(prefix); };
  std::erase_if(files_, [&](const auto& file) { return is_below(file.first); });
  std::erase_if(directories_, is_below);
  directories_.insert({"", "/"});
  return existed;
}

std::unique_ptr<Source> MemoryFiles::open(const std::filesystem::path& path) {
  const std::string key = key_of(path);
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(key);
  if (found != files_.end()) return std::make_unique<MemorySource>(found->second.content, path);
  throw Error(ErrorKind::kBadInput, directories_.contains(key) ? "not a regular file" : "no such file").in(path);
}

std::vector<DirectoryEntry> MemoryFiles::list(const std::filesystem::path& directory) {
  const std::string key = key_of(directory);
  const std::lock_guard lock(mutex_);
  if (!directories_.contains(key))
    throw files_.contains(key) ? no_directory("is not a directory", std::errc::not_a_directory, directory)
                               : no_directory("no such directory", std::errc::no_such_file_or_directory, directory);
  std::vector<DirectoryEntry> entries;
  for (const auto& file : files_)
    if (is_child(file.first, key)) entries.push_back({name_of(file.first), FileKind::kFile});
  for (const std::string& other : directories_)
    if (!other.empty() && other != "/" && is_child(other, key))
      entries.push_back({name_of(other), FileKind::kDirectory});
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) { return a.name < b.name; });
  return entries;
}

FileKind MemoryFiles::find(const std::string& key) const {
  if (files_.contains(key)) return FileKind::kFile;
  return directories_.contains(key) ? FileKind::kDirectory : FileKind::kNone;
}

FileKind MemoryFiles::kind_of(const std::filesystem::path& path) {
  const std::lock_guard lock(mutex_);
  return find(key_of(path));
}

std::filesystem::path MemoryFiles::resolve(const std::filesystem::path& path) {
  return key_of(path);
}

FileStamp MemoryFiles::stamp(const std::filesystem::path& path) {
  const std::string key = key_of(path);
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(key);
  if (found != files_.end()) return FileStamp(std::to_string(found->second.version));
  return directories_.contains(key) ? FileStamp("directory") : FileStamp();
}

}  // namespace reshard
