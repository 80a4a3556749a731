#include "reshard/engine/publish/old_outputs.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/wire.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/interrupted_swap.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "reshard old outputs 1\n";
constexpr std::uint64_t kMaxOldFileBytes = std::uint64_t{64} << 20;  // same as for a staging directory's mark

/// Renaming does not change it. A link is not the file that it leads to, and may lead nowhere from another place.
std::string stamp_of(Storage& storage, const fs::path& path) {
  const auto target = storage.directories().link_target(path);
  return target ? "link " + *target : storage.lasting_stamp(path).text();
}

bool is_folder(Storage& storage, const fs::path& path) {
  return storage.is_directory(path) && !storage.directories().is_link(path);
}

}  // namespace

OldOutputs::OldOutputs(Storage& storage, const fs::path& directory, const std::vector<fs::path>& entries) {
  for (const fs::path& entry : entries) add(storage, directory, entry);
}

void OldOutputs::add(Storage& storage, const fs::path& directory, const fs::path& relative) {
  if (!is_folder(storage, directory / relative)) {
    stamps_[relative] = stamp_of(storage, directory / relative);
    return;
  }
  for (const DirectoryEntry& entry : storage.list(directory / relative)) add(storage, directory, relative / entry.name);
}

OldOutputs OldOutputs::read(Storage& storage, const fs::path& root) {
  OldOutputs old;
  try {
    if (!storage.is_file(root / kOldFile)) return {};
    const std::string text = read_text_file(storage, root / kOldFile, kMaxOldFileBytes);
    const auto body = unsealed(kFirstLine, text);
    if (!body) return {};
    using Entries = std::vector<std::pair<std::string_view, std::string_view>>;
    for (const auto& [path, stamp] : WireReader(*body).read<Entries>()) {
      if (!is_short_path(path)) return {};
      old.stamps_.emplace(path, stamp);
    }
    return old;
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return {};
  }
}

void OldOutputs::write(Storage& storage, const fs::path& root, bool sync) const {
  const std::string text = sealed(kFirstLine, wire_bytes(stamps_));
  const auto sink = storage.create(root / kOldFile, text.size());
  sink->write_at(0, std::as_bytes(std::span(text)));
  sync ? sink->sync() : sink->finish();
}

bool OldOutputs::cover(Storage& storage, const fs::path& directory, const fs::path& entry) const {
  if (!is_folder(storage, directory / entry)) {
    const auto found = stamps_.find(entry);
    return found != stamps_.end() && found->second == stamp_of(storage, directory / entry);
  }
  const auto first = stamps_.lower_bound(entry);
  const std::vector<DirectoryEntry> below = storage.list(directory / entry);
  return first != stamps_.end() && lies_inside(first->first, entry) &&
         std::all_of(below.begin(), below.end(),
                     [&](const DirectoryEntry& file) { return cover(storage, directory, entry / file.name); });
}

std::set<fs::path> OldOutputs::unchanged_in(Storage& storage, const fs::path& directory) const {
  std::set<fs::path> paths;
  for (const auto& [path, stamp] : stamps_)
    if (storage.kind_of(directory / path) != FileKind::kNone && stamp_of(storage, directory / path) == stamp)
      paths.insert(path);
  return paths;
}

}  // namespace reshard
