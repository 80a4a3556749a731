#include "reshard/layouts/interrupted_swap.h"

#include <algorithm>
#include <set>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/sealed_text.h"
#include "reshard/base/wire.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/ranks/rank_format.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFirstLine = "reshard swap 1\n";
constexpr std::uint64_t kMaxBytes = std::uint64_t{64} << 20;  // same as for a staging directory's mark

struct Swap {
  fs::path staging;
  std::vector<fs::path> outputs;
};

void look_for_swaps(Files& files, const fs::path& directory, std::vector<Swap>& swaps) {
  try {
    for (const DirectoryEntry& entry : files.list(directory)) {
      if (entry.kind != FileKind::kDirectory || entry.is_link || !entry.name.starts_with(kStagingPrefix)) continue;
      auto entries = read_swap_record(files, directory / entry.name);
      if (!entries) continue;
      for (fs::path& output : *entries) output = directory / output;
      swaps.push_back({directory / entry.name, std::move(*entries)});
    }
  } catch (const Error& error) {  // the folder was just deleted, or cannot be listed
    if (is_disk_fault(error)) throw;
  }
}

/// Whether runs create folders of this name in their output directories.
bool is_output_folder(const std::string& name) {
  if (name.empty()) return false;  // the root
  return rank_of_name(name) || std::any_of(layouts().begin(), layouts().end(), [&](const Layout* layout) {
           return fs::path(layout->traits().folder).filename() == name;
         });
}

/// Whether `path` is a directory; false if access is denied.
bool is_directory(Files& files, const fs::path& path) {
  try {
    return files.is_directory(path);
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return false;
  }
}

/// Returns the swaps in the directory `path`, or in the directory of the file `path`, and in its output directories.
std::vector<Swap> swaps_around(Files& files, const fs::path& path) {
  std::vector<Swap> swaps;
  fs::path directory = is_directory(files, path) ? path : path.parent_path();
  look_for_swaps(files, directory, swaps);
  while (is_output_folder(directory.filename().string())) {
    directory = directory.parent_path();
    look_for_swaps(files, directory, swaps);
  }
  return swaps;
}

/// Returns `path` with links resolved, or unchanged if that fails, as for a link to itself.
fs::path resolved_or_same(Files& files, const fs::path& path) {
  try {
    return files.resolve(path);
  } catch (const Error& error) {
    if (is_disk_fault(error) && files.exists(path)) throw;
    return path;
  }
}

void validate_apart(const std::vector<Swap>& swaps, const std::function<bool(const fs::path& output)>& meets) {
  for (const Swap& swap : swaps)
    if (std::any_of(swap.outputs.begin(), swap.outputs.end(), meets))
      throw Error(
          ErrorKind::kBadInput,
          "a run was killed while it published its outputs here, or is publishing them now: some outputs are missing")
          .in(swap.staging.parent_path())
          .hint("run its command again, which first completes the publishing; the other outputs are in " +
                swap.staging.string());
}

/// Validates that no output of a swap is equal to, inside or above `path`.
void validate_apart(const std::vector<Swap>& swaps, const fs::path& path) {
  validate_apart(swaps, [&](const fs::path& output) { return lies_inside(output, path) || lies_inside(path, output); });
}

}  // namespace

bool is_short_path(std::string_view path) {
  constexpr std::size_t kMaxBytesOfPath = 1024;
  constexpr std::ptrdiff_t kMaxFolders = 16;
  return path.size() <= kMaxBytesOfPath && std::count(path.begin(), path.end(), '/') <= kMaxFolders;
}

std::string swap_record(const std::vector<fs::path>& entries) {
  return sealed(kFirstLine, wire_bytes(entries));
}

std::optional<std::vector<fs::path>> read_swap_record(Files& files, const fs::path& staging) {
  try {
    if (!files.is_file(staging / kSwapFile)) return std::nullopt;
    const std::string text = read_text_file(files, staging / kSwapFile, kMaxBytes);
    const auto body = unsealed(kFirstLine, text);
    if (!body) return std::nullopt;
    std::vector<fs::path> entries;
    for (const std::string_view text_of_entry : WireReader(*body).read<std::vector<std::string_view>>()) {
      if (!is_short_path(text_of_entry)) return std::nullopt;
      fs::path entry(text_of_entry);
      const bool leads_out = entry.is_absolute() ||
                             std::any_of(entry.begin(), entry.end(), [](const fs::path& part) { return part == ".."; });
      if (entry.empty() || leads_out) return std::nullopt;
      entries.push_back(std::move(entry));
    }
    return entries;
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    return std::nullopt;
  }
}

void validate_not_swapping(Files& files, const fs::path& path) {
  const fs::path resolved = resolved_or_same(files, path);
  validate_apart(swaps_around(files, resolved), resolved);
}

Checkpoint read_unless_swapping(Files& files, const fs::path& path, const std::function<Checkpoint()>& read) {
  const fs::path resolved = resolved_or_same(files, path);
  const std::vector<Swap> swaps = swaps_around(files, resolved);
  if (swaps.empty()) return read();
  Checkpoint checkpoint;
  try {
    checkpoint = read();
  } catch (const Error&) {
    validate_apart(
        swaps, [&](const fs::path& output) { return lies_inside(output, resolved) || lies_inside(resolved, output); });
    throw;
  }
  std::set<fs::path> used;
  for (const SourceFile& file : checkpoint.map.files) used.insert(file.path);
  if (!checkpoint.config.path.empty()) used.insert(checkpoint.config.path);
  std::set<fs::path> resolved_files;
  for (const fs::path& file : used)
    resolved_files.insert(files.resolve(files.absolute(file).parent_path()) / file.filename());
  validate_apart(swaps, [&](const fs::path& output) {
    return std::any_of(resolved_files.begin(), resolved_files.end(),
                       [&](const fs::path& file) { return lies_inside(file, output); });
  });
  return checkpoint;
}

}  // namespace reshard
