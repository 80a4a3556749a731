#include "reshard/engine/output.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>
#include <utility>

#include "reshard/base/crc32.h"
#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/strings.h"
#include "reshard/io/local_storage.h"
#include "reshard/layouts/layout.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;
using FileId = std::pair<dev_t, ino_t>;

std::optional<FileId> file_id(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

fs::path nearest_existing(fs::path path) {
  while (!fs::exists(path) && path != path.parent_path()) path = path.parent_path();
  return path;
}

/// Whether the files hold the same bytes.
bool same_content(const fs::path& a, const fs::path& b) {
  constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;
  const auto first = local_storage().open(a), second = local_storage().open(b);
  if (first->size_bytes() != second->size_bytes()) return false;
  std::vector<std::byte> of_a(std::min(kBlockBytes, first->size_bytes())), of_b(of_a.size());
  for (std::uint64_t at = 0; at < first->size_bytes(); at += of_a.size()) {
    const auto count = std::min<std::uint64_t>(of_a.size(), first->size_bytes() - at);
    first->read_at(at, std::span(of_a).first(count));
    second->read_at(at, std::span(of_b).first(count));
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count), of_b.begin())) return false;
  }
  return true;
}

/// The files of the model that are there already, byte for byte, as an earlier run has left them that shares the
/// directory.
std::set<fs::path> present_alike(const Job& job, const fs::path& directory) {
  std::set<fs::path> alike;
  if (!job.shares_directory) return alike;
  for (const CopiedFile& file : job.copied_files)
    if (fs::is_regular_file(fs::symlink_status(directory / file.path)) &&
        same_content(file.source, directory / file.path))
      alike.insert(file.path);
  return alike;
}

/// A folder that is replaced as a whole holds none of the inputs.
void validate_no_input_inside(const Job& job, const fs::path& folder) {
  const fs::path resolved = resolved_path(folder);
  for (const TensorFile& file : job.source.files) {
    if (lies_inside(resolved_path(file.path), resolved))
      throw Error(ErrorKind::kUsage, "holds the inputs and would be replaced")
          .in(folder)
          .hint("choose another output directory");
  }
}

}  // namespace

bool is_left_alone(const Job& job, const fs::path& relative, const fs::path& staged, const fs::path& final) {
  const auto is_it = [&](const CopiedFile& file) { return file.path == relative; };
  return job.shares_directory && std::any_of(job.copied_files.begin(), job.copied_files.end(), is_it) &&
         fs::is_regular_file(fs::symlink_status(final)) && same_content(staged, final);
}

bool in_whole_folder(const Job& job, const fs::path& relative) {
  return std::any_of(job.whole_folders.begin(), job.whole_folders.end(),
                     [&](const fs::path& folder) { return lies_inside(relative, folder); });
}

std::vector<fs::path> output_files(const Job& job) {
  std::vector<fs::path> files;
  for (const CopiedFile& file : job.copied_files) files.push_back(file.path);
  for (const TensorFile& file : job.target.files) files.push_back(file.path);
  for (const TextFile& file : job.text_files) files.push_back(file.path);
  return files;
}

void validate_only_ours(const Layout& layout, const fs::path& folder, const fs::path& shown_as) {
  const std::vector<std::string> foreign = layout.foreign_entries(local_storage(), folder);
  if (!foreign.empty())
    throw Error(ErrorKind::kBadInput,
                "would be replaced as a whole, but holds what this program did not write: " + list_names(foreign))
        .in(shown_as)
        .hint("move these away or choose another output directory; nothing foreign is ever deleted");
}

void validate_output(const Job& job) {
  const fs::path directory = resolved_path(job.output_directory);
  const fs::path existing = nearest_existing(directory);
  if (!fs::is_directory(existing))
    throw Error(ErrorKind::kBadInput, "is not a directory, so no outputs can be made in it").in(existing);
  if (::access(existing.c_str(), W_OK | X_OK) != 0) throw system_error(errno, "cannot write here", existing);

  if (fs::is_symlink(job.output_directory) && !fs::exists(job.output_directory))
    throw Error(ErrorKind::kBadInput, "is a link to nowhere").in(job.output_directory);

  std::set<FileId> inputs;
  for (const TensorFile& file : job.source.files)
    if (const auto id = file_id(file.path)) inputs.insert(*id);
  for (const CopiedFile& file : job.copied_files)
    if (const auto id = file_id(file.source)) inputs.insert(*id);

  const std::set<fs::path> alike = present_alike(job, directory);
  std::vector<std::string> present;
  std::set<fs::path> outputs(job.whole_folders.begin(), job.whole_folders.end());
  for (const fs::path& relative : output_files(job)) {
    if (!outputs.insert(relative).second)
      throw Error(ErrorKind::kBadInput, "two outputs would have this name")
          .in(directory / relative)
          .hint("a file of the model has the name of one that is to be written; move it away");
    const fs::path final = directory / relative;
    const auto id = file_id(final);
    if (id && inputs.count(*id))
      throw Error(ErrorKind::kUsage, "is an input and would be written")
          .in(final)
          .hint("choose another output directory");
    if (in_whole_folder(job, relative) || !fs::exists(fs::symlink_status(final))) continue;
    if (fs::is_directory(final))
      throw Error(ErrorKind::kBadInput, "is a directory, but a file is to be written there").in(final);
    if (!alike.count(relative)) present.push_back(relative.string());
  }
  for (const fs::path& folder : job.whole_folders) {
    if (!fs::exists(fs::symlink_status(directory / folder))) continue;
    if (fs::is_symlink(directory / folder) || !fs::is_directory(directory / folder))
      throw Error(ErrorKind::kBadInput, "is not a folder that this program made").in(directory / folder);
    validate_no_input_inside(job, directory / folder);
    present.push_back(folder.string() + "/");
    if (job.force) validate_only_ours(*job.layout, directory / folder, directory / folder);
  }
  if (!present.empty() && !job.force)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} already there and would be replaced: {}",
                            present.size() == 1 ? "one output is" : "some outputs are", list_names(present)))
        .in(directory)
        .hint("pass `force` to replace them, or choose another output directory");
}

std::string staging_prefix(const fs::path& output_directory) {
  constexpr std::size_t kMostBytes = 100;  // with the rest it fits any file system
  std::string name = output_directory.filename().string();
  if (name.size() > kMostBytes) {
    const std::uint32_t crc = crc32(std::as_bytes(std::span(name)));
    std::size_t end = 0;
    for (std::size_t length = 1; length > 0 && end + length <= kMostBytes; end += length)
      length = std::max<std::size_t>(utf8_length(std::string_view(name).substr(end)), 1);
    name = fmt::format("{}~{:08x}", name.substr(0, end), crc);
  }
  return "." + name + std::string(kStagingPrefix);
}

std::vector<fs::path> stale_stagings(const Job& job) {
  const fs::path output = resolved_path(job.output_directory);
  std::vector<fs::path> stale;
  const auto look = [&](const fs::path& directory, std::string_view prefix) {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(directory, ignored)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with(prefix) && name.size() == prefix.size() + 6) stale.push_back(entry.path());
    }
  };
  look(output.parent_path(), staging_prefix(output));
  look(output, kStagingPrefix);
  std::sort(stale.begin(), stale.end());
  return stale;
}

OutputSpace output_space(const Job& job) {
  OutputSpace space;
  space.needed_bytes = job.output_bytes();
  space.file_system = nearest_existing(resolved_path(job.output_directory));
  struct statvfs status {};
  if (::statvfs(space.file_system.c_str(), &status) != 0)
    throw system_error(errno, "cannot ask for free space", space.file_system);
  space.free_bytes = static_cast<std::uint64_t>(status.f_bavail) * status.f_frsize;
  return space;
}

void validate_space(const OutputSpace& space) {
  if (space.needed_bytes <= space.free_bytes) return;
  throw Error(ErrorKind::kNoSpace, fmt::format("the outputs need {} ({} bytes), but only {} ({} bytes) are free",
                                               format_bytes(space.needed_bytes), space.needed_bytes,
                                               format_bytes(space.free_bytes), space.free_bytes))
      .in(space.file_system)
      .hint("free some space or choose an output directory on another file system");
}

}  // namespace reshard
