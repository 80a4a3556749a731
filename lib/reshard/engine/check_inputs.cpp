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

std::optional<ExpectedDigest> of_sums(Files& files, const fs::path& file) {
  const fs::path sums = file.parent_path() / kSha256SumsFile;
  if (!files.is_file(sums)) return std::nullopt;
  for (const FileDigest& line : parse_sha256sums(read_text_file(files, sums, kMaxSumsBytes), sums))
    if (line.path == file.filename()) return ExpectedDigest{line.digest, sums};
  return std::nullopt;
}

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

}  // namespace

std::optional<ExpectedDigest> expected_digest(Files& files, const fs::path& file) {
  for (const auto& known : {of_sums, of_blob, of_metadata})
    if (auto digest = known(files, file)) return digest;
  return std::nullopt;
}

std::map<fs::path, Sha256Digest> check_inputs(const Job& job, const RunOptions& options, Together& together) {
  Files& storage = *options.storage;
  Progress own;
  Progress& progress = options.progress ? *options.progress : own;
  std::vector<fs::path> paths;
  std::vector<ExpectedDigest> expected;
  together.step("look for digests", progress, [&] {
    const auto add = [&](const fs::path& path) {
      if (auto digest = expected_digest(storage, path)) {
        paths.push_back(path);
        expected.push_back(std::move(*digest));
      }
    };
    for (const TensorFile& file : job.source.files) add(file.path);
    const bool any_tensors = !paths.empty();
    for (const CopiedFile& file : job.copied_files) add(file.source);
    if (!any_tensors)
      throw Error(ErrorKind::kBadInput,
                  job.source.files.size() == 1
                      ? std::string("no SHA-256 is known of its file of tensors")
                      : fmt::format("no SHA-256 is known of any of its {} files of tensors", job.source.files.size()))
          .in(job.source_directory)
          .hint("a SHA256SUMS beside them says it, or the cache of a download from Hugging Face");
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
