#include "reshard/io/listed_files.h"

#include <algorithm>

#include "reshard/io/open_store.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Appends the components of `path` except empty ones and ".". Keeps "..": its meaning depends on links.
void append_parts(std::string& key, const fs::path& path) {
  for (const fs::path& part : path.relative_path()) {
    if (part.empty() || part == ".") continue;
    if (!key.empty() && key.back() != '/') key += '/';
    key += part.native();
  }
}

/// The directory of `key` and the name in it; std::nullopt if the last part is no plain name.
std::optional<std::pair<std::string, std::string>> split(const std::string& key) {
  const std::size_t slash = key.rfind('/');
  if (slash == std::string::npos) return std::nullopt;
  std::string name = key.substr(slash + 1);
  if (name.empty() || name == "..") return std::nullopt;
  return std::pair(key.substr(0, std::max<std::size_t>(slash, 1)), std::move(name));
}

/// Whether `path` can only name a directory, as "x/" and "x/." do; that directory may not be searchable.
bool names_directory(const fs::path& path) {
  return path.has_relative_path() && (path.filename().empty() || path.filename() == ".");
}

const DirectoryEntry* find_entry(const std::vector<DirectoryEntry>& entries, const std::string& name) {
  const auto found = std::lower_bound(entries.begin(), entries.end(), name,
                                      [](const DirectoryEntry& entry, const std::string& n) { return entry.name < n; });
  return found != entries.end() && found->name == name ? &*found : nullptr;
}

/// A file that others may read, too.
class SharedSource final : public Source {
 public:
  explicit SharedSource(std::shared_ptr<const Source> source) : source_(std::move(source)) {}
  std::uint64_t size_bytes() const override { return source_->size_bytes(); }
  void read_at(std::uint64_t offset_bytes, std::span<std::byte> out) const override {
    source_->read_at(offset_bytes, out);
  }
  int descriptor() const override { return source_->descriptor(); }

 private:
  std::shared_ptr<const Source> source_;
};

}  // namespace

std::unique_ptr<Source> ListedFiles::open(const fs::path& path) {
  constexpr std::size_t kMaxOpen = 64;
  if (names_directory(path)) return files_.open(path);
  std::unique_lock lock(mutex_);
  Opened& file = opened_[key_of(path)];
  if (file.source) return std::make_unique<SharedSource>(file.source);
  const std::uint64_t stamps = file.stamps;
  lock.unlock();
  std::shared_ptr<const Source> source;
  try {
    source = files_.open(path);
  } catch (const Error& error) {
    if (error.code() != std::errc::too_many_files_open) throw;
    lock.lock();
    close_all();
    lock.unlock();
    source = files_.open(path);
  }
  lock.lock();
  if (open_ >= kMaxOpen) close_all();
  if (!file.source && file.stamps == stamps) {
    file.source = source;
    ++open_;
  }
  return std::make_unique<SharedSource>(std::move(source));
}

void ListedFiles::close_all() {
  for (auto& [key, file] : opened_) file.source.reset();
  open_ = 0;
}

FileStamp ListedFiles::stamp(const fs::path& path) {
  FileStamp stamp = files_.stamp(path);
  const std::lock_guard lock(mutex_);
  Opened& file = opened_[key_of(path)];
  ++file.stamps;
  if (file.source) --open_;
  file.source.reset();
  return stamp;
}

std::string ListedFiles::key_of(const fs::path& path) {
  std::string key = path.is_absolute() ? "/" : "";
  if (!path.is_absolute() && scheme_of(path).empty()) {
    if (!base_) {
      const fs::path base = files_.absolute(".");
      base_ = base.is_absolute() ? "/" : "";
      append_parts(*base_, base);
    }
    key = *base_;
  }
  append_parts(key, path);
  return key;
}

ListedFiles::Listing& ListedFiles::listing_of(const std::string& key) {
  const auto [found, is_new] = listings_.try_emplace(key);
  if (!is_new) return found->second;
  try {
    found->second.entries = files_.list(key);
    kinds_[key] = FileKind::kDirectory;
  } catch (const Error& error) {
    found->second.error = error;
  }
  return found->second;
}

bool ListedFiles::is_searchable(const std::string& key, Listing& listing) {
  if (!listing.searchable) {
    try {
      listing.searchable = files_.kind_of(fs::path(key) / ".") == FileKind::kDirectory;
    } catch (const Error& error) {
      if (error.code() != std::errc::permission_denied) throw;
      listing.searchable = false;  // the lookup of an entry reports the reason
    }
  }
  return *listing.searchable;
}

const ListedFiles::Listing* ListedFiles::usable_listing(const std::string& key) {
  Listing& listing = listing_of(key);
  return !listing.error && is_searchable(key, listing) ? &listing : nullptr;
}

std::optional<FileKind> ListedFiles::listed_kind(const std::string& key) {
  if (const auto found = kinds_.find(key); found != kinds_.end()) return found->second;
  const auto place = split(key);
  const auto above = place ? listed_kind(place->first) : std::nullopt;
  if (!above || *above == FileKind::kOther) return std::nullopt;
  if (*above != FileKind::kDirectory) return FileKind::kNone;
  const Listing* listing = usable_listing(place->first);
  if (listing == nullptr) return std::nullopt;
  const DirectoryEntry* entry = find_entry(listing->entries, place->second);
  if (entry == nullptr) return FileKind::kNone;
  if (entry->kind == FileKind::kOther) return std::nullopt;  // possibly a link into a directory without access
  return entry->kind;
}

FileKind ListedFiles::find_kind(const fs::path& path) {
  const std::string key = key_of(path);
  if (!names_directory(path)) {
    if (const auto listed = listed_kind(key)) return *listed;
    return kinds_[key] = files_.kind_of(path);
  }
  const std::string asked = key + (path.filename().empty() ? "/" : "/.");
  if (const auto found = kinds_.find(asked); found != kinds_.end()) return found->second;
  const FileKind kind = files_.kind_of(path);
  if (kind == FileKind::kDirectory) kinds_[key] = kind;
  return kinds_[asked] = kind;
}

std::vector<DirectoryEntry> ListedFiles::list(const fs::path& directory) {
  const std::lock_guard lock(mutex_);
  const Listing& listing = listing_of(key_of(directory));
  if (listing.error) throw Error(*listing.error).in(directory);
  return listing.entries;
}

FileKind ListedFiles::kind_of(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  return find_kind(path);
}

fs::path ListedFiles::find_resolved(const fs::path& path) {
  const std::string key = key_of(path);
  if (const auto found = resolved_.find(key); found != resolved_.end()) return found->second;
  const auto place = split(key);
  const auto above = place ? listed_kind(place->first) : std::nullopt;
  if (above == FileKind::kDirectory)
    if (const Listing* listing = usable_listing(place->first)) {
      const DirectoryEntry* entry = find_entry(listing->entries, place->second);
      if (entry == nullptr || !entry->is_link) return resolved_[key] = find_resolved(place->first) / place->second;
    }
  return resolved_[key] = files_.resolve(path);
}

fs::path ListedFiles::resolve(const fs::path& path) {
  const std::lock_guard lock(mutex_);
  return find_resolved(path);
}

bool ListedFiles::is_same(const fs::path& a, const fs::path& b) {
  {
    const std::lock_guard lock(mutex_);
    for (const fs::path& path : {a, b}) {
      const auto kind = listed_kind(key_of(path));
      if (kind == FileKind::kNone || kind == FileKind::kBrokenLink) return false;
    }
  }
  return files_.is_same(a, b);
}

}  // namespace reshard
