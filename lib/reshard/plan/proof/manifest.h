#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <variant>
#include <vector>

#include "reshard/base/sha256.h"
#include "reshard/formats/common/tensor_role.h"
#include "reshard/io/files.h"
#include "reshard/tensor/values/dtype.h"
#include "reshard/tensor/values/shape.h"

namespace reshard {

/// A line of a SHA256SUMS file, as `sha256sum` of coreutils writes and checks it.
struct FileDigest {
  std::string path;  // relative, with '/'
  Sha256Digest digest;
};
inline constexpr const char* kSha256SumsFile = "SHA256SUMS";
std::string sha256sums_text(const std::vector<FileDigest>& files);
/// Also accepts lines as BSD and OpenSSL write them; skips empty lines and comments ("# …").
/// \throws Error kBadInput, with the line, for any other line, for a path given twice, and for a path that is absolute
/// or leads out of the directory.
std::vector<FileDigest> parse_sha256sums(std::string_view text, const std::filesystem::path& path);

/// The digests in a SHA256SUMS file, for looking up files in any directory.
struct SumsList {
  /// Keyed by absolute path, as text; std::nullopt for a path that is listed with two different digests.
  std::map<std::string, std::optional<Sha256Digest>> digests;
  std::vector<std::uint64_t> other_lines;  // line numbers without a digest, which sha256sum skips, too
};
/// \param directory  absolute path of the directory that contains the list and to which its paths are relative.
SumsList read_sha256sums(std::string_view text, const std::filesystem::path& directory);

/// The digest of a tensor's elements, as engine/units/leaf_digests.h defines it.
struct TensorDigest {
  Sha256Digest digest{};
  std::vector<Sha256Digest> leaves;  // empty if there are fewer than two

  static auto fields(auto& self) { return std::tie(self.digest, self.leaves); }
  friend bool operator==(const TensorDigest&, const TensorDigest&) = default;
};

/// Maximum bytes per leaf of a tensor's digest.
inline constexpr std::uint64_t kLeafBytes = std::uint64_t{4} << 20;

/// The contents of reshard.manifest.json, which lists published files. Runs of the same job write the same manifest.
struct Manifest {
  struct File {
    std::string path;  // relative to the source's directory, or to the output's
    std::uint64_t size_bytes = 0;
    std::optional<Sha256Digest> digest;  // may be unknown for a source

    friend bool operator==(const File&, const File&) = default;
  };
  struct Tensor {
    std::string name;
    DType dtype = DType::kBF16;
    Dims shape;
    TensorDigest digest;
    TensorRole role = TensorRole::kParameter;

    friend bool operator==(const Tensor&, const Tensor&) = default;
  };
  using OptionValue = std::variant<bool, std::uint64_t, std::string>;

  std::string version;  // version of reshard: "0.1.0"
  std::string command;  // "shard"
  std::string layout;
  std::uint32_t tp = 1, pp = 1, ep = 1;
  std::map<std::string, OptionValue> options;  // options that shaped the output, by parameter name
  std::string fingerprint;                     // fingerprint of the job
  std::vector<File> sources;
  std::vector<File> files;      // without the manifest itself and SHA256SUMS
  std::vector<Tensor> tensors;  // sorted by name

  friend bool operator==(const Manifest&, const Manifest&) = default;
};
inline constexpr const char* kManifestFile = "reshard.manifest.json";
inline constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;

/// Returns JSON with one tensor per line.
std::string manifest_text(const Manifest& manifest);
/// \throws Error kBadInput for text that is not a manifest, for a duplicate tensor or one whose leaves do not match its
/// digest, and for a path that leads out of the directory; kUnsupported for an unknown version.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);

}  // namespace reshard
