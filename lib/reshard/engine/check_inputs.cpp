#include "reshard/engine/check_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/digests.h"
#include "reshard/formats/manifest.h"
#include "reshard/io/text_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSumsBytes = std::uint64_t{256} << 20;
constexpr std::uint64_t kMaxMetadataBytes = 4096;

using Found = std::optional<ExpectedDigest>;

/// Calls `look` with the directory of a file and the two above it, and the file's path relative to each, until it finds
/// something. `file` is absolute.
template <typename Look>
Found look_above(const fs::path& file, const Look& look) {
  constexpr int kMostLevels = 3;
  fs::path relative = file.filename(), directory = file.parent_path();
  for (int level = 0; level < kMostLevels; ++level) {
    if (Found found = look(directory, relative)) return found;
    if (directory.filename().empty() || directory.filename() == "..") break;
    relative = directory.filename() / relative;
    directory = directory.parent_path();
  }
  return std::nullopt;
}

/// The lists are read once each.
class Sums {
 public:
  explicit Sums(Files& files) : files_(files) {}

  /// From a list beside the file, or in one of the directories above, as rank files have it.
  Found find(const fs::path& file) {
    return look_above(file, [&](const fs::path& directory, const fs::path&) -> Found {
      const SumsList& list = list_in(directory);
      const auto found = list.digests.find(file.lexically_normal().string());
      if (found == list.digests.end()) return std::nullopt;
      const fs::path from = directory / kSha256SumsFile;
      if (!found->second)
        throw Error(ErrorKind::kBadInput, fmt::format("lists {} twice, with two digests", printable(file.string())))
            .in(from)
            .hint("make the list anew with sha256sum");
      return ExpectedDigest{*found->second, from};
    });
  }

  /// What to know of lists in which lines say nothing; empty if there are none.
  std::string doubts() const {
    std::string text;
    for (const auto& [directory, list] : lists_)
      if (!list.other_lines.empty())
        text += fmt::format("; in {} these lines are no SHA-256 of a file: {}", (directory / kSha256SumsFile).string(),
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

Found of_blob(Files& files, const fs::path& file) {
  const fs::path blob = files.resolve(file);
  if (blob.parent_path().filename() != "blobs") return std::nullopt;
  const auto digest = sha256_of_hex(blob.filename().string());
  return digest ? Found(ExpectedDigest{*digest, blob}) : std::nullopt;
}

/// In the directory that was downloaded, of which the file may lie in a subfolder.
Found of_metadata(Files& files, const fs::path& file) {
  return look_above(file, [&](const fs::path& directory, const fs::path& relative) -> Found {
    const fs::path metadata = directory / ".cache/huggingface/download" / (relative.string() + ".metadata");
    if (!files.is_file(metadata)) return std::nullopt;
    const std::vector<std::string> lines = split(read_text_file(files, metadata, kMaxMetadataBytes), '\n');
    if (lines.size() < 2) return std::nullopt;
    const auto digest = sha256_of_hex(lines[1]);
    return digest ? Found(ExpectedDigest{*digest, metadata}) : std::nullopt;
  });
}

/// What a git-lfs pointer says (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md).
Found of_pointer(Files& files, const fs::path& pointer) {
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

Found expected_digest(Files& files, Sums& sums, const fs::path& file, const fs::path& against) {
  const fs::path absolute = files.absolute(file);
  Found digest;
  if (!against.empty()) digest = of_pointer(files, against);
  if (!digest && !against.empty()) digest = sums.find(files.absolute(against));
  if (!digest) digest = sums.find(absolute);
  if (!digest) digest = of_blob(files, file);
  if (!digest) digest = of_metadata(files, absolute);
  return digest;
}

/// Of all files of tensors: one that nobody checks would pass as checked.
/// \param digests  of the job's files, those of tensors first.
/// \param doubts   of Sums.
void validate_all_known(const Job& job, const std::vector<Found>& digests, const std::string& doubts) {
  const std::size_t all = job.source.files.size();
  const auto end = digests.begin() + static_cast<std::ptrdiff_t>(all);
  const auto unknown = std::find(digests.begin(), end, std::nullopt);
  if (unknown == end) return;
  const auto count = static_cast<std::size_t>(std::count(unknown, end, std::nullopt));
  const std::string hint =
      "a SHA256SUMS beside them or above says it, the cache of a download from Hugging Face, or what `check-against` "
      "names" +
      doubts;
  if (count == all)
    throw Error(ErrorKind::kBadInput, all == 1
                                          ? std::string("no SHA-256 is known of its file of tensors")
                                          : fmt::format("no SHA-256 is known of any of its {} files of tensors", all))
        .in(job.source_directory)
        .hint(hint);
  throw Error(ErrorKind::kBadInput,
              count == 1 ? fmt::format("no SHA-256 is known of it, the only such file of {}", all)
                         : fmt::format("no SHA-256 is known of it, the first of {} such files of {}", count, all))
      .in(job.source.files[static_cast<std::size_t>(unknown - digests.begin())].path)
      .hint(hint);
}

}  // namespace

std::vector<Found> expected_digests(Files& files, const std::vector<fs::path>& paths) {
  Sums sums(files);
  std::vector<Found> digests;
  digests.reserve(paths.size());
  for (const fs::path& file : paths) digests.push_back(expected_digest(files, sums, file, {}));
  return digests;
}

std::map<fs::path, Sha256Digest> check_inputs(const Job& job, const RunOptions& options, Together& together,
                                              const fs::path& against) {
  Files& storage = *options.storage;
  Progress own;
  Progress& progress = options.progress ? *options.progress : own;
  std::vector<fs::path> paths;
  std::vector<ExpectedDigest> expected;
  together.step("look for digests", progress, [&] {
    std::vector<fs::path> files;
    for (const TensorFile& file : job.source.files) files.push_back(file.path);
    for (const CopiedFile& file : job.copied_files) files.push_back(file.source);
    Sums sums(storage);
    std::vector<Found> digests;
    if (!against.empty() && !storage.is_directory(against))
      throw Error(ErrorKind::kBadInput, "is not a directory, in which digests are").in(against);
    for (const fs::path& file : files) {
      const fs::path relative = storage.absolute(file).lexically_relative(storage.absolute(job.source_directory));
      const bool is_inside = !relative.empty() && *relative.begin() != "..";
      digests.push_back(
          expected_digest(storage, sums, file, is_inside && !against.empty() ? against / relative : fs::path()));
    }
    validate_all_known(job, digests, sums.doubts());
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (!digests[i]) continue;
      paths.push_back(std::move(files[i]));
      expected.push_back(std::move(*digests[i]));
    }
  });
  const auto read = [&](std::uint64_t bytes) { progress.done_bytes += bytes; };
  const std::vector<Sha256Digest> digests = digest_files(paths, options, read, together);
  std::map<fs::path, Sha256Digest> known;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    if (digests[i] != expected[i].digest)
      throw Error(ErrorKind::kBadInput,
                  fmt::format("has SHA-256 {}, but should have {}, as {} says", to_hex(digests[i]),
                              to_hex(expected[i].digest), expected[i].from.string()))
          .in(paths[i])
          .hint("the file is damaged, or was changed: get it anew");
    known.emplace(paths[i], digests[i]);
  }
  return known;
}

}  // namespace reshard
