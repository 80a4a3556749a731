#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/move/run_options.h"
#include "reshard/engine/ranks/together.h"
#include "reshard/layouts/map/tensor_map.h"
#include "reshard/plan/proof/manifest.h"

namespace reshard {

/// A tensor whose digest differs from the manifest's.
struct DigestDifference {
  std::string name;
  std::uint64_t leaves = 0;           // number of leaves
  std::vector<std::uint64_t> differ;  // indices of the leaves that differ
  std::string first;                  // elements of the first leaf that differs: "[0:128, 0:4096]"
  std::vector<std::string> files;     // files that contain those leaves
};

/// Result of comparing files with their digests.
struct FilesVerification {
  std::uint64_t compared_files = 0;
  std::uint64_t compared_bytes = 0;
  std::vector<std::string> missing;
  std::vector<std::string> different;
  std::vector<std::string> unlisted;  // tensor files (by name) in the directory that are not listed

  bool same() const { return missing.empty() && different.empty(); }
};

/// Result of comparing a checkpoint with a manifest. Tensors are sorted by name.
struct ManifestVerification {
  std::uint64_t compared_tensors = 0;
  std::uint64_t compared_bytes = 0;
  std::uint64_t states_left = 0;  // entries of training state in the manifest that were not compared
  std::vector<std::string> only_manifest;
  std::vector<std::string> only_checkpoint;
  std::vector<std::string> other_form;  // tensors with another dtype or shape, with both forms
  std::vector<DigestDifference> different;
  /// From verify_manifest_files, if the checkpoint is the manifest's own output.
  std::optional<FilesVerification> files;

  bool same() const {
    return only_manifest.empty() && only_checkpoint.empty() && other_form.empty() && different.empty() &&
           (!files || files->same());
  }
};

/// Hashes the tensors of a checkpoint of any layout and compares them with a manifest. Replicas and padding are
/// compared according to RunOptions::replicas. If the map has no training state, the manifest's is only counted.
/// \throws Error kBadInput if the number of leaves in the manifest does not match a tensor's shape; kUnsupported if the
/// manifest lists tensors that its layout computes from those of the map; as run_program.
ManifestVerification verify_manifest(const SourceMap& map, const Manifest& manifest,
                                     const std::filesystem::path& manifest_path, const RunOptions& options);
/// The same, distributed over ranks.
ManifestVerification verify_manifest(const SourceMap& map, const Manifest& manifest,
                                     const std::filesystem::path& manifest_path, const RunOptions& options,
                                     Together& together);

/// Compares the sizes and digests of the files in a manifest's directory with its list. Includes tensor files, whose
/// headers and padding verify_manifest does not see.
/// \throws Error kIo; kInterrupted.
FilesVerification verify_manifest_files(const Manifest& manifest, const std::filesystem::path& directory,
                                        const RunOptions& options, Together& together);

/// Hashes the listed files in `directory`.
/// \throws Error kIo; kInterrupted.
FilesVerification verify_files(const std::filesystem::path& directory, const std::vector<FileDigest>& files,
                               const RunOptions& options);
/// The same, distributed over ranks.
FilesVerification verify_files(const std::filesystem::path& directory, const std::vector<FileDigest>& files,
                               const RunOptions& options, Together& together);

}  // namespace reshard
