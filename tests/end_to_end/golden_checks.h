#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "reshard/plan/job/job.h"

namespace reshard::test {

/// What a run of a golden case has written, compared with the reference's files. Each function makes CHECKs.
struct GoldenOutput {
  std::filesystem::path output;
  std::filesystem::path golden_case;
  const nlohmann::json& golden;
  Format format;

  /// Every file of weights has the tensors that golden.json's `files` lists under the same path.
  void check_files() const;
  /// Every rank has the tensors that `files` lists for it, in one file or several, whatever their names. Listed names
  /// that match `without`, unless it is empty, are not expected.
  void check_ranks(const std::string& without = {}) const;
  /// The directory has the reference's entries. Files are equal: JSON by content, except config.json; files of
  /// torch.save by the order and sharing of tensors and by the archive's entries, those of xser by their dicts and
  /// tensors; all others by their bytes.
  void check_as(const std::filesystem::path& reference) const;
  /// A folder has the same JSON files.
  void check_json(const std::string& folder, const std::filesystem::path& reference) const;
  /// A file has the tensors that golden.json lists at `pointer`.
  void check_digests(const std::string& file, const std::string& pointer) const;
  /// The names of the first rank's tensors that begin with `prefix`, without it.
  void check_names(const nlohmann::json& expected) const;
  /// The optimizer's files: {"as": file, "at": JSON pointer into it, …}.
  void check_states(const nlohmann::json& expected) const;
  /// Small blocks on several threads make the same files.
  void check_blocks(const Job& job, std::uint64_t block_bytes) const;
};

}  // namespace reshard::test
