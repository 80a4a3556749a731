#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "support/files.h"

/// Files of torch.save that hold dicts in dicts, such as an optimizer's.
namespace reshard::test {

/// What is in one. Both are as in golden.json of testdata/golden/zero1.
struct SavedTree {
  /// Dicts with their keys in order (that of a number N is "int N"), lists, tuples and numbers; a tensor is
  /// {"tensor": dtype, "shape": […]}.
  nlohmann::ordered_json structure;
  std::map<std::string, TensorData> tensors;  // by path: "base_state/0/exp_avg"
};

/// Reads `path`, whose tensors are in itself or, as xser has them, in files of their own.
SavedTree read_saved_tree(const std::filesystem::path& path);

/// Of every such file under `directory`, by path relative to it: "optim/dp_rank_00_tp_rank_00_pp_rank_00.pt".
std::map<std::string, SavedTree> read_saved_trees(const std::filesystem::path& directory);

/// The files of `directory` are those of `expected`, by path relative to it: CHECKs.
void check_saved_trees(const std::filesystem::path& directory, const std::map<std::string, SavedTree>& expected);

/// Writes it as one file of torch.save, or as xser does, without PATH.info.pt: a file for each tensor.
void write_saved_tree(const std::filesystem::path& path, const SavedTree& tree, bool xser = false);

/// Puts `tree` under `key` of `whole`, as an item of a list there or as the value.
void add_under(SavedTree& whole, const std::string& key, const SavedTree& tree, bool in_list = false);

}  // namespace reshard::test
