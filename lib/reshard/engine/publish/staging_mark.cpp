#include "reshard/engine/publish/staging_mark.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <system_error>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/strings.h"
#include "reshard/base/wire.h"
#include "reshard/engine/publish/journal.h"
#include "reshard/engine/publish/old_outputs.h"
#include "reshard/engine/publish/output.h"
#include "reshard/engine/publish/publish.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/interrupted_swap.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kMarkLine = "reshard staging directory 2\n";
constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;  // names of about 250 000 files

std::string mark_text(Storage& storage, const fs::path& root) {
  return read_text_file(storage, root / kMarkFile, kMaxBytes);
}

/// Returns the paths in the mark of a directory; std::nullopt if it has none.
std::optional<std::set<fs::path>> marked_paths(Storage& storage, const fs::path& root) {
  try {
    const std::string text = mark_text(storage, root);
    const auto body = unsealed(kMarkLine, text);
    if (!body) return std::nullopt;
    std::set<fs::path> paths;
    for (const std::string_view path : WireReader(*body).read<std::vector<std::string_view>>()) {
      if (!is_short_path(path)) return std::nullopt;
      paths.emplace(path);
    }
    return paths;
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Finds entries of a staging directory that runs did not create.
class Walk {
 public:
  Walk(Storage& storage, const fs::path& root, const std::set<fs::path>& outputs) : storage_(storage), root_(root) {
    know(outputs);
  }

  std::vector<std::string> foreign() {
    for (const DirectoryEntry& entry : storage_.list(root_)) {
      const bool is_folder = entry.kind == FileKind::kDirectory && !entry.is_link;
      if (is_folder && entry.name == kUnusedFolder)
        look_at_own_files(entry.name);
      else if (is_folder && (entry.name == kWholeFolder || entry.name == kReplacedFolder))
        look_at_outputs(entry.name);
      else if (!is_own_file(entry.name, entry))
        look_at(entry.name, entry.name, entry);
    }
    return std::move(foreign_);
  }

 private:
  /// This program's lock files are empty.
  bool is_own_file(const fs::path& path, const DirectoryEntry& entry) const {
    if (entry.kind != FileKind::kFile || entry.is_link) return false;
    if (entry.name == kLockFile) return storage_.size_bytes(root_ / path) == 0;
    const std::string_view rest =
        std::string_view(entry.name).substr(std::min(kJournalPrefix.size(), entry.name.size()));
    const bool is_journal = entry.name.starts_with(kJournalPrefix) && rest.find_first_of("0123456789") == 0;
    return entry.name == kMarkFile || entry.name == kSwapFile || entry.name == kOldFile || is_journal;
  }

  void know(const std::set<fs::path>& outputs) {
    for (const fs::path& output : outputs) {
      outputs_.insert(output);
      for (fs::path above = output.parent_path(); !above.empty() && folders_.insert(above).second;)
        above = above.parent_path();
    }
  }

  void look_at_own_files(const fs::path& folder) {
    for (const DirectoryEntry& entry : storage_.list(root_ / folder))
      if (!is_own_file(folder / entry.name, entry)) foreign_.push_back((folder / entry.name).string());
  }

  /// Checks new outputs, or old ones, which may belong to ranks that the new outputs do not have.
  void look_at_outputs(const fs::path& folder) {
    know(OldOutputs::read(storage_, root_).unchanged_in(storage_, root_ / folder));
    const std::size_t before = foreign_.size();
    look_into(folder, {});
    if (foreign_.size() == before) return;
    foreign_.resize(before);
    for (const std::string& name : unproven_outputs(storage_, root_ / folder, {}, outputs_))
      foreign_.push_back((folder / name).string());
  }

  /// \param path    in the staging directory.
  /// \param output  where it would be in the output directory.
  void look_at(const fs::path& path, const fs::path& output, const DirectoryEntry& entry) {
    const bool is_folder = entry.kind == FileKind::kDirectory && !entry.is_link;
    if (is_folder && folders_.contains(output))
      look_into(path, output);
    else if (is_folder && !holds_files(root_ / path))
      return;  // a run was killed after it had deleted the files in it
    else if (entry.kind != FileKind::kFile || entry.is_link || !outputs_.contains(output))
      foreign_.push_back(path.string());
  }

  /// Whether a folder contains anything but folders, at any depth.
  bool holds_files(const fs::path& folder) const {
    const std::vector<DirectoryEntry> entries = storage_.list(folder);
    return std::any_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) {
      return entry.kind != FileKind::kDirectory || entry.is_link || holds_files(folder / entry.name);
    });
  }

  void look_into(const fs::path& path, const fs::path& output) {
    for (const DirectoryEntry& entry : storage_.list(root_ / path))
      look_at(path / entry.name, output / entry.name, entry);
  }

  Storage& storage_;
  const fs::path& root_;
  std::set<fs::path> outputs_;
  std::set<fs::path> folders_;  // contain outputs
  std::vector<std::string> foreign_;
};

/// Whether the mark's bytes were lost in a machine crash, or not yet written.
bool has_lost_mark(Storage& storage, const fs::path& root) {
  if (!storage.is_file(root / kMarkFile) || storage.size_bytes(root / kMarkFile) > kMaxBytes) return false;
  return mark_text(storage, root).find_first_not_of('\0') == std::string::npos;
}

std::set<fs::path> paths_of(const Job& job) {
  const std::vector<fs::path> files = output_files(job);
  return {files.begin(), files.end()};
}

std::string not_this_programs(const std::string& name) {
  return fmt::format("its {} was not written by this program", name);
}

}  // namespace

std::string staging_mark(const Job& job) {
  return sealed(kMarkLine, wire_bytes(paths_of(job)));
}

bool has_mark_of(Storage& storage, const fs::path& root, const Job& job) {
  try {
    return mark_text(storage, root) == staging_mark(job);
  } catch (const Error&) {
    return false;
  }
}

std::string why_not_ours(Storage& storage, const fs::path& root) {
  if (!storage.directories().is_own(root)) return "it belongs to another user";
  return marked_paths(storage, root) ? std::string() : not_this_programs(std::string(kMarkFile));
}

std::string why_not_only_ours(Storage& storage, const fs::path& root, const Job& job) {
  if (!storage.directories().is_own(root)) return "it belongs to another user";
  try {
    auto outputs = marked_paths(storage, root);
    if (!outputs && storage.kind_of(root / kMarkFile) == FileKind::kNone) outputs.emplace();
    if (!outputs && has_lost_mark(storage, root)) outputs = paths_of(job);
    if (!outputs) return not_this_programs(std::string(kMarkFile));
    const std::vector<std::string> foreign = Walk(storage, root, *outputs).foreign();
    return foreign.empty() ? std::string() : fmt::format("it contains {}, which no run created", list_names(foreign));
  } catch (const Error& error) {
    if (error.code() != std::errc::permission_denied) throw;
    return fmt::format("{} cannot be read", error.path());
  }
}

}  // namespace reshard
