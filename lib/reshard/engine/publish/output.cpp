#include "reshard/engine/publish/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "reshard/base/crc32.h"
#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/base/sha256.h"
#include "reshard/base/strings.h"
#include "reshard/engine/publish/proof.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/interrupted_swap.h"
#include "reshard/layouts/own_files.h"
#include "reshard/layouts/ranks/master_weights.h"
#include "reshard/plan/proof/job_manifest.h"
#include "reshard/plan/proof/manifest.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kComparedAtOnce = std::uint64_t{1} << 20;

fs::path nearest_existing(Files& files, fs::path path) {
  while (!files.exists(path) && path != path.parent_path()) path = path.parent_path();
  return path;
}

/// Whether any entry has this name, even a broken link.
bool is_taken(Files& files, const fs::path& path) {
  return files.kind_of(path) != FileKind::kNone;
}

bool is_plain_file(Storage& storage, const fs::path& path) {
  return storage.is_file(path) && !storage.directories().is_link(path);
}

/// The files that a job reads.
class Inputs {
 public:
  Inputs(Files& files, const Job& job) : files_(files) {
    for (const SourceFile& file : job.source.files) add(file.path, file.stamp ? *file.stamp : files.stamp(file.path));
    for (const CopiedFile& file : job.copied_files) add(file.source, files.stamp(file.source));
  }

  /// Whether `path` is one of them, under any name.
  bool hold(const fs::path& path) const {
    const FileStamp stamp = files_.stamp(path);
    if (stamp.empty()) return false;
    const auto [begin, end] = by_stamp_.equal_range(stamp);
    return std::any_of(begin, end, [&](const auto& input) { return files_.is_same(input.second, path); });
  }

 private:
  void add(const fs::path& path, const FileStamp& stamp) {
    if (!stamp.empty()) by_stamp_.emplace(stamp, path);
  }

  Files& files_;
  std::multimap<FileStamp, fs::path> by_stamp_;
};

/// The files that a manifest lists and that have not been written since.
class ListedFiles {
 public:
  ListedFiles(Files& files, fs::path directory) : files_(files), directory_(std::move(directory)) {
    const fs::path path = directory_ / kManifestFile;
    if (!files_.is_file(path)) return;
    try {
      for (Manifest::File& file : parse_manifest(read_text_file(files_, path, kMaxManifestBytes), path).files)
        listed_.emplace(file.path, std::move(file));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kIo) throw;  // otherwise it proves nothing
    }
  }

  bool prove(const fs::path& relative) const {
    const auto found = listed_.find(relative.generic_string());
    if (found == listed_.end() || !found->second.digest) return false;
    const auto source = files_.open(directory_ / relative);
    return source->size_bytes() == found->second.size_bytes && digest_of(*source) == *found->second.digest;
  }

 private:
  static Sha256Digest digest_of(const Source& source) {
    Sha256 hash;
    std::vector<std::byte> block(std::min(kComparedAtOnce, source.size_bytes()));
    for (std::uint64_t at = 0; at < source.size_bytes(); at += block.size()) {
      const auto bytes = std::span(block).first(std::min<std::uint64_t>(block.size(), source.size_bytes() - at));
      source.read_at(at, bytes);
      hash.update(bytes);
    }
    return hash.finish();
  }

  Files& files_;
  fs::path directory_;
  std::map<std::string, Manifest::File> listed_;
};

/// Returns the outputs in which torch.load finds a state dict, or references to the tensors of one (xser).
std::vector<fs::path> state_dict_files(const Job& job) {
  std::vector<fs::path> files;
  for (const TargetFile& file : job.target.files)
    if (file.encoding == TargetFile::Encoding::kTorch) files.push_back(file.path);
  if (job.format == Format::kXser)
    for (const TextFile& file : job.text_files)
      if (const std::string name = file.path.filename().string();
          name.ends_with(".pt") && !name.ends_with(kXserInfoSuffix) && !metadata_pp_rank(name))
        files.push_back(file.path);
  std::erase_if(files, [](const fs::path& path) { return path.parent_path().filename() == kOptimizerFolder; });
  return files;
}

/// Validates that a file of tensors to be replaced contains no more than a state dict: an optimizer in the same file
/// would be lost. Reads its header.
void validate_only_weights(Files& files, const fs::path& file) {
  std::string more;
  try {
    if (format_of_file(files, file) == Format::kSafetensors) return;
    more = keys_beside_state_dict(read_torch_file(*files.open(file), file));
  } catch (const Error& error) {
    if (is_disk_fault(error)) throw;
    if (error.kind() != ErrorKind::kUnsupported) return;  // damaged, or no file of tensors
    more = fmt::format("more than this program can read ({})", error.message());
  }
  if (more.empty()) return;
  throw Error(ErrorKind::kBadInput, "would be replaced, but in addition to weights it contains: " + more)
      .in(file)
      .hint(
          "choose another output directory; training state is never deleted, so delete the file yourself if you do "
          "not need it");
}

/// Validates that a folder that is replaced as a whole contains no inputs.
void validate_no_input_inside(Files& files, const Job& job, const fs::path& folder) {
  const fs::path resolved = files.resolve(folder);
  for (const SourceFile& file : job.source.files) {
    if (lies_inside(files.resolve(file.path), resolved))
      throw Error(ErrorKind::kUsage, "contains the inputs and would be replaced")
          .in(folder)
          .hint("choose another output directory");
  }
}

}  // namespace

bool is_left_alone(const Stores& stores, const Job& job, const fs::path& relative, const fs::path& final) {
  const auto copied = std::find_if(job.copied_files.begin(), job.copied_files.end(),
                                   [&](const CopiedFile& file) { return file.path == relative; });
  return job.shares_directory && copied != job.copied_files.end() && is_plain_file(stores.target(), final) &&
         same_content(stores.sources(), copied->source, stores.target(), final);
}

bool in_whole_folder(const Job& job, const fs::path& relative) {
  return std::any_of(job.whole_folders.begin(), job.whole_folders.end(),
                     [&](const fs::path& folder) { return lies_inside(relative, folder); });
}

std::vector<fs::path> output_files(const Job& job) {
  std::vector<fs::path> files;
  for (const CopiedFile& file : job.copied_files) files.push_back(file.path);
  for (const TargetFile& file : job.target.files) files.push_back(file.path);
  for (const TextFile& file : job.text_files) files.push_back(file.path);
  if (job.manifest) files.insert(files.end(), {kManifestFile, kSha256SumsFile});
  return files;
}

std::vector<std::string> unproven_outputs(Files& files, const fs::path& old_outputs, const fs::path& folder,
                                          const std::set<fs::path>& replaced) {
  const ListedFiles listed(files, old_outputs);
  return unproven_entries(files, old_outputs / folder, replaced,
                          [&](const fs::path& path) { return listed.prove(folder / path); });
}

void validate_only_ours(Files& files, const Job& job, const fs::path& folder, const fs::path& old_outputs) {
  std::set<fs::path> replaced;
  for (const fs::path& relative : output_files(job))
    if (lies_inside(relative, folder)) replaced.insert(relative.lexically_relative(folder));
  const std::vector<std::string> unproven = unproven_outputs(files, old_outputs, folder, replaced);
  if (unproven.empty()) return;
  throw Error(ErrorKind::kBadInput,
              "would be replaced as a whole, but contains entries that this program is not known to have written: " +
                  list_names(unproven))
      .in(files.resolve(job.output_directory) / folder)
      .hint("move them away or choose another output directory; other programs' files are never deleted");
}

bool is_all_replaced(Files& files, const Job& job, const fs::path& outputs, const fs::path& except) {
  std::set<fs::path> replaced, folders;
  for (const fs::path& relative : output_files(job)) {
    replaced.insert(relative);
    for (fs::path folder = relative.parent_path(); !folder.empty(); folder = folder.parent_path())
      folders.insert(folder);
  }
  const std::function<bool(const fs::path&)> look = [&](const fs::path& folder) {
    const std::vector<DirectoryEntry> entries = files.list(outputs / folder);
    return std::all_of(entries.begin(), entries.end(), [&](const DirectoryEntry& entry) {
      const fs::path relative = folder / entry.name;
      if (entry.kind != FileKind::kDirectory || entry.is_link) return replaced.contains(relative);
      return outputs / relative == except || in_whole_folder(job, relative) ||
             (folders.contains(relative) && look(relative));
    });
  };
  return look({});
}

void validate_output(const Stores& stores, const Job& job) {
  Storage& storage = stores.target();
  if (job.manifest && job.shares_directory)
    throw Error(ErrorKind::kUsage, "`manifest` describes all ranks, but this run writes only some of them")
        .hint("write all ranks in one run, or leave out `manifest`");
  if (job.manifest) validate_manifest_names(job);
  const fs::path directory = storage.resolve(job.output_directory);
  const fs::path existing = nearest_existing(storage, directory);
  if (!storage.is_directory(existing))
    throw Error(ErrorKind::kBadInput, "is not a directory, so outputs cannot be written there")
        .in(existing)
        .hint("choose another output directory");
  storage.directories().validate_writable(existing);

  if (storage.kind_of(job.output_directory) == FileKind::kBrokenLink)
    throw Error(ErrorKind::kBadInput, "is a broken symbolic link").in(job.output_directory);

  const Inputs inputs(stores.sources(), job);
  std::vector<std::string> present;
  std::set<fs::path> outputs(job.whole_folders.begin(), job.whole_folders.end());
  for (const fs::path& relative : output_files(job)) {
    if (!outputs.insert(relative).second)
      throw Error(ErrorKind::kBadInput, "two outputs would have this name")
          .in(directory / relative)
          .hint("a file of the model has the same name as an output file; move it away");
    const fs::path final = directory / relative;
    if (inputs.hold(final))
      throw Error(ErrorKind::kUsage, "is an input and would be overwritten")
          .in(final)
          .hint("choose another output directory");
    if (in_whole_folder(job, relative) || !is_taken(storage, final)) continue;
    if (storage.is_directory(final))
      throw Error(ErrorKind::kBadInput, "is a directory, but a file is to be written there").in(final);
    if (!is_left_alone(stores, job, relative, final)) present.push_back(relative.string());
  }
  if (job.force)
    for (const fs::path& path : state_dict_files(job))
      if (storage.is_file(directory / path)) validate_only_weights(storage, directory / path);
  for (const fs::path& folder : job.whole_folders) {
    if (!is_taken(storage, directory / folder)) continue;
    if (storage.directories().is_link(directory / folder) || !storage.is_directory(directory / folder))
      throw Error(ErrorKind::kBadInput, "is not a folder that this program made").in(directory / folder);
    validate_no_input_inside(stores.sources(), job, directory / folder);
    present.push_back(folder.string() + "/");
    if (job.force) validate_only_ours(storage, job, folder, directory);
  }
  if (!present.empty() && !job.force)
    throw Error(ErrorKind::kBadInput,
                fmt::format("{} and would be replaced: {}",
                            present.size() == 1 ? "one output already exists" : "some outputs already exist",
                            list_names(present)))
        .in(directory)
        .code(std::make_error_code(std::errc::file_exists))
        .hint(std::string("pass `force` to replace ") + (present.size() == 1 ? "it" : "them") +
              ", or choose another output directory");
  if (!present.empty() && !job.manifest && is_taken(storage, directory / kManifestFile))
    throw Error(ErrorKind::kBadInput, "describes files that would be replaced, and would no longer be valid")
        .in(directory / kManifestFile)
        .hint(std::string("write a new one (`manifest`), or remove it and ") + kSha256SumsFile);
}

std::string staging_prefix(const fs::path& output_directory) {
  constexpr std::size_t kMostBytes = 100;  // together with the rest, it fits any file system
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

std::vector<fs::path> stale_stagings(Files& files, const Job& job) {
  const fs::path output = files.resolve(job.output_directory);
  std::vector<fs::path> stale;
  const auto look = [&](const fs::path& directory, std::string_view prefix) {
    try {
      for (const DirectoryEntry& entry : files.list(directory))
        if (entry.kind == FileKind::kDirectory && !entry.is_link && entry.name.starts_with(prefix) &&
            entry.name.size() == prefix.size() + 6)
          stale.push_back(directory / entry.name);
    } catch (const Error&) {
      // A directory that does not exist or cannot be listed has none.
    }
  };
  look(output.parent_path(), staging_prefix(output));
  look(output, kStagingPrefix);
  std::sort(stale.begin(), stale.end());
  return stale;
}

OutputSpace output_space(Storage& storage, const Job& job) {
  OutputSpace space;
  space.needed_bytes = job.output_bytes() + (job.manifest ? proof_bytes(job) : 0);
  space.file_system = nearest_existing(storage, storage.resolve(job.output_directory));
  space.free_bytes = storage.directories().free_bytes(space.file_system);
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
