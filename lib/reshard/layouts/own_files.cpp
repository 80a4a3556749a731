#include "reshard/layouts/own_files.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "reshard/base/error.h"
#include "reshard/base/paths.h"
#include "reshard/formats/read_container.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/torch/xser.h"
#include "reshard/layouts/map/rank_record.h"
#include "reshard/layouts/ranks/master_weights.h"
#include "reshard/layouts/ranks/rank_format.h"
#include "reshard/specs/stages/stage_json.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Returns the rank record of a file of any format; std::nullopt if there is no record, or if the file cannot be read
/// as tensors.
std::optional<RankRecord> record_of(Files& files, const fs::path& path) {
  try {
    if (!files.is_file(path)) return std::nullopt;
    const auto source = files.open(path);
    if (format_of_file(files, path) == Format::kSafetensors) return read_record(read_safetensors(*source, path));
    Container container;
    container.path = path;
    container.metadata = read_torch_file(*source, path).metadata();
    return read_record(container);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kBadInput && error.kind() != ErrorKind::kUnsupported) throw;
    return std::nullopt;
  }
}

/// Returns the rank in the name of a file or its folder, in the forms that this program writes: weights of the first
/// data-parallel rank.
std::optional<RankId> rank_by_name(const fs::path& path) {
  const std::string name = path.filename().string(), folder = path.parent_path().filename().string();
  for (const Layout* layout : layouts()) {
    const RankFormat* const format = layout->ranks();
    if (format == nullptr) continue;
    const auto& in_folder = format->files_in_folder;
    const bool is_in_rank = std::find(in_folder.begin(), in_folder.end(), name) != in_folder.end();
    if (const auto numbers = format->numbers(is_in_rank ? folder : name)) return rank_of(*numbers);
  }
  return std::nullopt;
}

/// Whether the file still has its original name. A copy under another name belongs to the user.
bool is_of_rank(const RankRecord& record, const RankId& rank) {
  return rank.dp_rank == 0 && rank.tp_rank == record.tp_rank && rank.pp_rank == record.pp_rank &&
         rank.ep_rank == record.ep_rank;
}

/// Returns the rank file that an xser file belongs to; empty for other files.
fs::path xser_owner(const fs::path& path) {
  const fs::path folder = path.parent_path();
  if (folder.extension() == kXserTensorsSuffix && is_xser_tensor_name(path.filename().string()))
    return fs::path(folder).replace_extension();
  const std::string name = path.filename().string();
  if (!name.ends_with(kXserInfoSuffix)) return {};
  return folder / name.substr(0, name.size() - kXserInfoSuffix.size());
}

class Walk {
 public:
  Walk(Files& files, const fs::path& folder, const std::set<fs::path>& replaced,
       const std::function<bool(const fs::path&)>& is_listed)
      : files_(files), folder_(folder), replaced_(replaced), is_listed_(is_listed) {}

  std::vector<std::string> run() {
    look_into({});
    for (const auto& [path, pp_rank] : metadata_)
      if (pp_rank >= stages_) unproven_.push_back(path.string());
    std::sort(unproven_.begin(), unproven_.end());
    std::stable_partition(unproven_.begin(), unproven_.end(), [](const std::string& name) {
      return fs::path(name).parent_path().filename() == kOptimizerFolder;  // the most valuable entries first
    });
    return std::move(unproven_);
  }

 private:
  /// Returns whether any entry below is proven.
  bool look_into(const fs::path& relative) {
    const std::size_t before = unproven_.size();
    bool any = false;
    for (const DirectoryEntry& entry : files_.list(folder_ / relative))
      any = look_at(relative / entry.name, entry) || any;
    if (any || relative.empty()) return any;
    unproven_.resize(before);  // replaced by the name of the folder
    unproven_.push_back((relative / "").string());
    return false;
  }

  bool look_at(const fs::path& path, const DirectoryEntry& entry) {
    const bool is_plain = !entry.is_link;
    if (is_plain && entry.kind == FileKind::kDirectory && (entry.name != kOptimizerFolder || is_written_to(path)))
      return look_into(path);
    if (is_plain && entry.kind == FileKind::kFile && is_ours(path)) return true;
    unproven_.push_back(entry.kind == FileKind::kDirectory ? (path / "").string() : path.string());
    return false;
  }

  bool is_ours(const fs::path& path) {
    if (replaced_.count(path) > 0 || is_listed_(path)) return true;
    const auto pp_rank = metadata_pp_rank(path.filename().string());
    if (pp_rank) metadata_.emplace_back(path, *pp_rank);  // run() checks the stage
    return pp_rank || is_recorded(path) || is_recorded(xser_owner(path));
  }

  bool is_recorded(const fs::path& path) {
    if (path.empty()) return false;
    const auto [known, is_new] = recorded_.emplace(path, false);
    if (!is_new) return known->second;
    const auto rank = rank_by_name(path);
    auto record = rank ? record_of(files_, folder_ / path) : std::nullopt;
    if (record && !is_of_rank(*record, *rank)) record.reset();
    if (record) stages_ = std::max(stages_, record->pp_degree);
    return known->second = record.has_value();
  }

  bool is_written_to(const fs::path& folder) const {
    return std::any_of(replaced_.begin(), replaced_.end(),
                       [&](const fs::path& path) { return lies_inside(path, folder); });
  }

  Files& files_;
  const fs::path& folder_;
  const std::set<fs::path>& replaced_;
  const std::function<bool(const fs::path&)>& is_listed_;
  std::map<fs::path, bool> recorded_;  // whether a file has a matching record
  std::uint32_t stages_ = 0;           // the largest pipeline in any record
  std::vector<std::pair<fs::path, std::uint32_t>> metadata_;
  std::vector<std::string> unproven_;
};

}  // namespace

std::vector<std::string> unproven_entries(Files& files, const fs::path& folder, const std::set<fs::path>& replaced,
                                          const std::function<bool(const fs::path&)>& is_listed) {
  return Walk(files, folder, replaced, is_listed).run();
}

}  // namespace reshard
