#include "reshard/engine/check_inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/engine/digests.h"
#include "reshard/formats/manifest.h"
#include "reshard/io/text_file.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSumsBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kMaxMetadataBytes = 4096;

/// The lists are read once each.
class Sums {
 public:
  explicit Sums(Files& files) : files_(files) {}

  /// From a list beside the file, or in one of the directories above, as rank files have it.
  std::optional<ExpectedDigest> find(const fs::path& file) {
    constexpr int kMostLevels = 3;
    fs::path relative = file.filename(), directory = file.parent_path();
    for (int level = 0; level < kMostLevels; ++level) {
      const auto& listed = list_in(directory);
      if (const auto found = listed.find(relative.generic_string()); found != listed.end())
        return ExpectedDigest{found->second, directory / kSha256SumsFile};
      if (directory.filename().empty() || directory.filename() == "..") break;
      relative = directory.filename() / relative;
      directory = directory.parent_path();
    }
    return std::nullopt;
  }

 private:
  const std::map<std::string, Sha256Digest>& list_in(const fs::path& directory) {
    const auto [found, is_new] = lists_.try_emplace(directory);
    const fs::path sums = directory / kSha256SumsFile;
    if (is_new && files_.is_file(sums))
      for (const FileDigest& line : parse_sha256sums(read_text_file(files_, sums, kMaxSumsBytes), sums))
        found->second.emplace(line.path, line.digest);
    return found->second;
  }

  Files& files_;
  std::map<fs::path, std::map<std::string, Sha256Digest>> lists_;
};

std::optional<ExpectedDigest> of_blob(Files& files, const fs::path& file) {
  const fs::path blob = files.resolve(file);
  if (blob.parent_path().filename() != "blobs") return std::nullopt;
  const auto digest = sha256_of_hex(blob.filename().string());
  return digest ? std::optional(ExpectedDigest{*digest, blob}) : std::nullopt;
}

std::optional<ExpectedDigest> of_metadata(Files& files, const fs::path& file) {
  const fs::path metadata =
      file.parent_path() / ".cache/huggingface/download" / (file.filename().string() + ".metadata");
  if (!files.is_file(metadata)) return std::nullopt;
  const std::vector<std::string> lines = split(read_text_file(files, metadata, kMaxMetadataBytes), '\n');
  if (lines.size() < 2) return std::nullopt;
  const auto digest = sha256_of_hex(lines[1]);
  return digest ? std::optional(ExpectedDigest{*digest, metadata}) : std::nullopt;
}

/// Of all files of tensors: one that nobody checks would pass as checked.
/// \param digests  of the job's files, those of tensors first.
void validate_all_known(const Job& job, const std::vector<std::optional<ExpectedDigest>>& digests) {
  const std::size_t all = job.source.files.size();
  const auto end = digests.begin() + static_cast<std::ptrdiff_t>(all);
  const auto unknown = std::find(digests.begin(), end, std::nullopt);
  if (unknown == end) return;
  const auto count = static_cast<std::size_t>(std::count(unknown, end, std::nullopt));
  const char* hint = "a SHA256SUMS beside them or above says it, or the cache of a download from Hugging Face";
  if (count == all)
    throw Error(ErrorKind::kBadInput, all == 1
                                          ? std::string("no SHA-256 is known of its file of tensors")
                                          : fmt::format("no SHA-256 is known of any of its {} files of tensors", all))
        .in(job.source_directory)
        .hint(hint);
  throw Error(ErrorKind::kBadInput, fmt::format("no SHA-256 is known of it, one of {} such files of {}", count, all))
      .in(job.source.files[static_cast<std::size_t>(unknown - digests.begin())].path)
      .hint(hint);
}

}  // namespace

std::vector<std::optional<ExpectedDigest>> expected_digests(Files& files, const std::vector<fs::path>& paths) {
  Sums sums(files);
  std::vector<std::optional<ExpectedDigest>> digests;
  digests.reserve(paths.size());
  for (const fs::path& file : paths) {
    auto digest = sums.find(files.absolute(file));
    if (!digest) digest = of_blob(files, file);
    if (!digest) digest = of_metadata(files, file);
    digests.push_back(std::move(digest));
  }
  return digests;
}

std::map<fs::path, Sha256Digest> check_inputs(const Job& job, const RunOptions& options, Together& together) {
  Files& storage = *options.storage;
  Progress own;
  Progress& progress = options.progress ? *options.progress : own;
  std::vector<fs::path> paths;
  std::vector<ExpectedDigest> expected;
  together.step("look for digests", progress, [&] {
    std::vector<fs::path> files;
    for (const TensorFile& file : job.source.files) files.push_back(file.path);
    for (const CopiedFile& file : job.copied_files) files.push_back(file.source);
    std::vector<std::optional<ExpectedDigest>> digests = expected_digests(storage, files);
    validate_all_known(job, digests);
    for (std::size_t i = 0; i < files.size(); ++i) {
      if (!digests[i]) continue;
      paths.push_back(std::move(files[i]));
      expected.push_back(std::move(*digests[i]));
    }
  });
  const std::vector<Sha256Digest> digests = digest_files(paths, options, {}, together);
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
