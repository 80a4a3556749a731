#include "reshard/engine/check/check_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "reshard/base/crc32.h"
#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/check/digests.h"
#include "reshard/io/parallel.h"
#include "reshard/io/text_file.h"
#include "reshard/layouts/contents/recorded_checksums.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSumsBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxMetadataBytes = 4096;
constexpr std::uint64_t kCheckedAtOnce = std::uint64_t{1} << 20;

using FoundDigest = std::optional<ExpectedDigest>;

/// Calls `look` with a file's directory and the two above it, and the file's path relative to each, until it finds a
/// digest. `file` is absolute.
template <typename Look>
FoundDigest look_above(const fs::path& file, const Look& look) {
  constexpr int kMostLevels = 3;
  fs::path relative = file.filename(), directory = file.parent_path();
  for (int level = 0; level < kMostLevels; ++level) {
    if (FoundDigest found = look(directory, relative)) return found;
    if (directory.filename().empty() || directory.filename() == "..") break;
    relative = directory.filename() / relative;
    directory = directory.parent_path();
  }
  return std::nullopt;
}

/// SHA256SUMS files, each read once.
class Sums {
 public:
  explicit Sums(Files& files) : files_(files) {}

  /// Looks in the file's directory and those above it, which contain the lists of rank files.
  FoundDigest find(const fs::path& file) {
    return look_above(file, [&](const fs::path& directory, const fs::path&) -> FoundDigest {
      const SumsList& list = list_in(directory);
      const auto found = list.digests.find(file.lexically_normal().string());
      if (found == list.digests.end()) return std::nullopt;
      const fs::path from = directory / kSha256SumsFile;
      if (!found->second)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("lists {} twice with different digests", printable(file.string())))
            .in(from)
            .hint("recreate the list with sha256sum");
      return ExpectedDigest{*found->second, from};
    });
  }

  /// Describes lines of lists that contain no digest; empty if every line has one.
  std::string doubts() const {
    std::string text;
    for (const auto& [directory, list] : lists_)
      if (!list.other_lines.empty())
        text += fmt::format("; these lines of {} are not SHA-256 entries: {}", (directory / kSha256SumsFile).string(),
                            list_numbers(list.other_lines));
    return text;
  }

 private:
  const SumsList& list_in(const fs::path& directory) {
    const auto [found, is_new] = lists_.try_emplace(directory);
    const fs::path sums = directory / kSha256SumsFile;
    if (is_new && files_.is_file(sums))
      found->second = read_sha256sums(read_text_file(files_, sums, kMaxSumsBytes), directory);
    return found->second;
  }

  Files& files_;
  std::map<fs::path, SumsList> lists_;
};

FoundDigest of_blob(Files& files, const fs::path& file) {
  const fs::path blob = files.resolve(file);
  if (blob.parent_path().filename() != "blobs") return std::nullopt;
  const auto digest = sha256_of_hex(blob.filename().string());
  return digest ? FoundDigest(ExpectedDigest{*digest, blob}) : std::nullopt;
}

/// Looks in the cache of a Hugging Face download, in the file's directory or one above it.
FoundDigest of_metadata(Files& files, const fs::path& file) {
  return look_above(file, [&](const fs::path& directory, const fs::path& relative) -> FoundDigest {
    const fs::path metadata = directory / ".cache/huggingface/download" / (relative.string() + ".metadata");
    if (!files.is_file(metadata)) return std::nullopt;
    const std::vector<std::string> lines = split(read_text_file(files, metadata, kMaxMetadataBytes), '\n');
    if (lines.size() < 2) return std::nullopt;
    const auto digest = sha256_of_hex(lines[1]);
    return digest ? FoundDigest(ExpectedDigest{*digest, metadata}) : std::nullopt;
  });
}

/// Returns the digest in a git-lfs pointer (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
FoundDigest of_pointer(Files& files, const fs::path& pointer) {
  constexpr std::uint64_t kMaxPointerBytes = 1024;
  constexpr std::string_view kVersion = "version https://git-lfs", kDigest = "oid sha256:";
  if (!files.is_file(pointer) || files.size_bytes(pointer) > kMaxPointerBytes) return std::nullopt;
  const std::string text = read_text_file(files, pointer, kMaxPointerBytes);
  if (!text.starts_with(kVersion)) return std::nullopt;
  for (const std::string& line : split(text, '\n')) {
    if (!line.starts_with(kDigest)) continue;
    const auto digest = sha256_of_hex(std::string_view(line).substr(kDigest.size()));
    if (digest) return ExpectedDigest{*digest, pointer};
  }
  throw Error(ErrorKind::kBadInput, "is a git-lfs pointer without a SHA-256").in(pointer);
}

/// Returns the possible paths in `against` of a `file` of the source at `directory`. `against` may be a copy of
/// `directory` or of the directory one or two levels above, since ranks have their own folders.
std::vector<fs::path> paths_in(const fs::path& against, const fs::path& file, fs::path directory) {
  constexpr int kMostFolders = 2;
  std::vector<fs::path> paths;
  for (int folders = 0; folders <= kMostFolders && directory.has_relative_path(); ++folders) {
    const fs::path relative = file.lexically_relative(directory);
    if (!relative.empty() && *relative.begin() != "..") paths.push_back(against / relative);
    directory = directory.parent_path();
  }
  return paths;
}

/// \param elsewhere  paths of `file` in a directory whose digests take precedence, first one first.
FoundDigest expected_digest(Files& files, Sums& sums, const fs::path& file, const std::vector<fs::path>& elsewhere) {
  const fs::path absolute = files.absolute(file);
  FoundDigest digest;
  for (const fs::path& path : elsewhere) {
    if (!digest) digest = of_pointer(files, path);
    if (!digest) digest = sums.find(files.absolute(path));
  }
  if (!digest) digest = sums.find(absolute);
  if (!digest) digest = of_blob(files, file);
  if (!digest) digest = of_metadata(files, absolute);
  return digest;
}

using Recorded = std::optional<std::vector<ChecksummedRange>>;

/// Validates that every tensor file has a digest: otherwise an unchecked file would seem checked.
/// \param is_known  by tensor file.
/// \param doubts    from Sums.
void validate_all_known(const Job& job, const std::vector<bool>& is_known, const std::string& doubts) {
  const std::size_t all = job.source.files.size();
  const auto unknown = std::find(is_known.begin(), is_known.end(), false);
  if (unknown == is_known.end()) return;
  const auto count = static_cast<std::size_t>(std::count(unknown, is_known.end(), false));
  const std::string hint =
      "digests are read from a SHA256SUMS next to the files or in a parent directory, from the Hugging Face download "
      "cache, or from `check-against`" +
      doubts;
  if (count == all)
    throw Error(ErrorKind::kBadInput, all == 1 ? std::string("no SHA-256 is known for its tensor file")
                                               : fmt::format("no SHA-256 is known for any of its {} tensor files", all))
        .in(job.source_directory)
        .hint(hint);
  throw Error(ErrorKind::kBadInput,
              count == 1 ? fmt::format("no SHA-256 is known for it, the only such file of {}", all)
                         : fmt::format("no SHA-256 is known for it, the first of {} such files of {}", count, all))
      .in(job.source.files[static_cast<std::size_t>(unknown - is_known.begin())].path)
      .hint(hint);
}

/// Reads and checks the ranges of a file.
/// \throws Error kBadInput naming the first damaged range; kIo; kInterrupted.
void validate_checksums(const fs::path& file, const std::vector<ChecksummedRange>& ranges, const RunOptions& options,
                        Progress& progress) {
  const auto source = options.stores.sources().open(file);
  std::vector<std::byte> block(kCheckedAtOnce);
  for (const ChecksummedRange& range : ranges) {
    std::uint32_t crc = 0;
    for (std::uint64_t done = 0; done < range.size_bytes;) {
      throw_if_stopped(options);
      const auto bytes = std::span(block).first(std::min(kCheckedAtOnce, range.size_bytes - done));
      source->read_at(range.offset_bytes + done, bytes);
      crc = crc32(bytes, crc);
      done += bytes.size();
      progress.done_bytes += bytes.size();
    }
    if (crc != range.crc32)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("the zip entry of {} bytes that begins here has CRC-32 {:08x}, expected {:08x}",
                              range.size_bytes, crc, range.crc32))
          .in(file)
          .at_byte(range.offset_bytes)
          .hint("the file is damaged: fetch it again, or use another checkpoint of the run");
  }
}

}  // namespace

std::vector<FoundDigest> expected_digests(Files& files, const std::vector<fs::path>& paths) {
  Sums sums(files);
  std::vector<FoundDigest> digests;
  digests.reserve(paths.size());
  for (const fs::path& file : paths) digests.push_back(expected_digest(files, sums, file, {}));
  return digests;
}

std::map<fs::path, Sha256Digest> check_inputs(const Job& job, const RunOptions& options, Together& together,
                                              const fs::path& against) {
  Files& sources = options.stores.sources();
  Progress own;
  Progress& progress = options.progress ? *options.progress : own;
  std::vector<fs::path> paths;
  std::vector<ExpectedDigest> expected;
  std::vector<Recorded> recorded;  // of tensor files without a known digest
  together.step("look for digests", progress, [&] {
    std::vector<fs::path> files;
    for (const SourceFile& file : job.source.files) files.push_back(file.path);
    for (const CopiedFile& file : job.copied_files) files.push_back(file.source);
    Sums sums(sources);
    std::vector<FoundDigest> digests;
    if (!against.empty() && !sources.is_directory(against))
      throw Error(ErrorKind::kBadInput, "is not a directory, in which digests are").in(against);
    for (const fs::path& file : files) {
      std::vector<fs::path> elsewhere;
      if (!against.empty())
        elsewhere = paths_in(against, sources.absolute(file), sources.absolute(job.source_directory));
      digests.push_back(expected_digest(sources, sums, file, elsewhere));
    }
    std::vector<bool> is_known(job.source.files.size());
    recorded.resize(is_known.size());
    for (std::size_t i = 0; i < is_known.size(); ++i) {
      if (!digests[i]) recorded[i] = recorded_checksums(sources, job.source.files[i]);
      is_known[i] = digests[i] || recorded[i];
    }
    validate_all_known(job, is_known, sums.doubts());
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (!digests[i]) continue;
      paths.push_back(std::move(files[i]));
      expected.push_back(std::move(*digests[i]));
    }
  });
  together.step("check files", progress, [&] {
    std::vector<std::size_t> mine;  // this rank's files, among those without a digest
    for (std::size_t i = 0, n = 0; i < recorded.size(); ++i)
      if (recorded[i] && n++ % together.size() == together.rank()) mine.push_back(i);
    for_each_number(mine.size(), thread_count(options), [&](std::size_t i) {
      validate_checksums(job.source.files[mine[i]].path, *recorded[mine[i]], options, progress);
    });
  });
  const auto read = [&](std::uint64_t bytes) { progress.done_bytes += bytes; };
  const std::vector<Sha256Digest> digests = digest_files(paths, options, read, together);
  std::map<fs::path, Sha256Digest> known;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (digests[i] != expected[i].digest)
      throw Error(ErrorKind::kBadInput, fmt::format("has SHA-256 {}, expected {} from {}", to_hex(digests[i]),
                                                    to_hex(expected[i].digest), expected[i].from.string()))
          .in(paths[i])
          .hint("the file is damaged or was changed: fetch it again");
    known.emplace(paths[i], digests[i]);
  }
  return known;
}

}  // namespace reshard
