#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/move/run.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

/// A tensor that is not the manifest's.
struct DigestDifference {
  std::string name;
  std::uint64_t leaves = 0;           // that it has
  std::vector<std::uint64_t> differ;  // which of them are others
  std::string first;                  // the elements of the first: "[0:128, 0:4096]"
  std::vector<std::string> files;     // that hold them
};

/// What came of comparing files with their digests.
struct FilesVerification {
  std::uint64_t compared_files = 0;
  std::uint64_t compared_bytes = 0;
  std::vector<std::string> missing;
  std::vector<std::string> different;
  std::vector<std::string> unlisted;  // files of tensors, told by their names, that are there and not in the list

  bool same() const { return missing.empty() && different.empty(); }
};

/// What came of comparing a checkpoint with a manifest. Tensors are in the order of their names.
struct ManifestVerification {
  std::uint64_t compared_tensors = 0;
  std::uint64_t compared_bytes = 0;
  std::uint64_t states_left = 0;  // entries of the manifest that are beside the model, and were not compared
  std::vector<std::string> only_manifest;
  std::vector<std::string> only_checkpoint;
  std::vector<std::string> other_form;  // names with both dtypes and shapes
  std::vector<DigestDifference> different;
  /// Of verify_manifest_files, where the checkpoint is the manifest's own output.
  std::optional<FilesVerification> files;

  bool same() const {
    return only_manifest.empty() && only_checkpoint.empty() && other_form.empty() && different.empty() &&
           (!files || files->same());
  }
};

/// Hashes the tensors of a checkpoint, whatever its layout, and compares them with those of a manifest; replicas and
/// padding are compared as RunOptions::replicas says. If the map has no states, the manifest's are only counted.
/// \throws Error kBadInput for a manifest whose leaves are not those of the tensor's shape; as run_program.
ManifestVerification verify_manifest(const SourceMap& map, const Manifest& manifest,
                                     const std::filesystem::path& manifest_path, const RunOptions& options);
/// The same by several ranks.
ManifestVerification verify_manifest(const SourceMap& map, const Manifest& manifest,
                                     const std::filesystem::path& manifest_path, const RunOptions& options,
                                     Together& together);

/// Compares the files in the directory of a manifest with those that it lists, sizes and digests. Files of tensors, too:
/// verify_manifest sees nothing of their headers and padding.
/// \throws Error kIo; kInterrupted.
FilesVerification verify_manifest_files(const Manifest& manifest, const std::filesystem::path& directory,
                                        const RunOptions& options, Together& together);

/// Hashes the files that are listed, under `directory`.
/// \throws Error kIo; kInterrupted.
FilesVerification verify_files(const std::filesystem::path& directory, const std::vector<FileDigest>& files,
                               const RunOptions& options);
/// The same by several ranks.
FilesVerification verify_files(const std::filesystem::path& directory, const std::vector<FileDigest>& files,
                               const RunOptions& options, Together& together);

}  // namespace reshard
