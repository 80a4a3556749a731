#include "end_to_end/golden_checks.h"

#include <algorithm>
#include <regex>

#include "reshard/formats/torch/torch_file.h"
#include "reshard/formats/zip/zip.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/fields.h"
#include "support/golden.h"
#include "support/local_files.h"
#include "support/models.h"
#include "support/saved_trees.h"
#include "support/temp_dir.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Files of weights below a directory, by path relative to it. Not the parts of an xser file, nor the optimizer's.
std::vector<std::string> weight_files(const fs::path& directory) {
  std::vector<std::string> files;
  for (const auto& [name, content] : snapshot(directory)) {
    const bool is_part = name.find(".tensors/") != name.npos || name.ends_with(".info.pt");
    const bool is_other = name.starts_with("optim/") || name.find("/optim/") != name.npos;
    if (!is_part && !is_other && (name.ends_with(".pt") || name.ends_with(".safetensors"))) files.push_back(name);
  }
  return files;
}

/// "tp_rank_01_pp_rank_00", after "ep_rank_00_" if there is one, or the number in "tp1_sharded_checkpoint" or "model-rank-1-part-0"; empty for other files.
std::string rank_in(const std::string& file) {
  static const std::regex kOfMesh(R"((ep_rank_\d+_)?tp_rank_\d+(_pp_rank_\d+)?)"), kNumber(R"((?:tp|rank[-_])(\d+))");
  std::smatch match;
  if (std::regex_search(file, match, kOfMesh)) return match.str();
  return std::regex_search(file, match, kNumber) ? match[1].str() : std::string();
}

/// torch.load's view of a file: names in order, each with the first name that shares its storage.
std::vector<std::pair<std::string, std::string>> sharing(const TorchFile& file) {
  std::map<std::uint32_t, std::string> first;
  std::vector<std::pair<std::string, std::string>> names;
  for (const auto& [key, value] : file.pickle().pairs(file.pickle().root())) {
    const std::string name(file.pickle().text(key));
    names.emplace_back(name, first.emplace(file.tensor(value, name).storage, name).first->second);
  }
  return names;
}

void check_torch_file(const fs::path& our_path, const fs::path& their_path) {
  const TorchFile ours = read_torch_file(our_path), theirs = read_torch_file(their_path);
  CHECK(sharing(ours) == sharing(theirs));
  CHECK(ours.storages().size() == theirs.storages().size());
  const auto their_zip = read_zip(*local_storage().open(their_path), their_path);
  const auto our_zip = read_zip(*local_storage().open(our_path), our_path);
  for (const ZipEntry& entry : our_zip.entries()) {
    INFO(entry.name);
    CHECK(entry.offset_bytes % 64 == 0);
    if (!entry.name.ends_with("/reshard.json"))  // ours alone: which rank the file is of
      CHECK(their_zip.find(entry.name) != nullptr);
  }
}

/// The bytes of each storage in a file of torch.save, by the storage's name.
std::map<std::string, std::string> storages_in(const fs::path& path) {
  const std::string content = read_file(path);
  std::map<std::string, std::string> storages;
  const auto zip = read_zip(*local_storage().open(path), path);
  for (const ZipEntry& entry : zip.entries())
    if (const std::size_t at = entry.name.find("/data/"); at != entry.name.npos)
      storages[entry.name.substr(at)] = content.substr(entry.offset_bytes, entry.size_bytes);
  return storages;
}

/// A file of xser's, which has its tensors in files of their own, or one of those.
void check_xser_file(const fs::path& our_path, const fs::path& their_path) {
  CHECK((storages_in(our_path) == storages_in(their_path)));
  const SavedTree ours = read_saved_tree(our_path), theirs = read_saved_tree(their_path);
  CHECK(ours.structure.dump(1) == theirs.structure.dump(1));
  CHECK((ours.tensors == theirs.tensors));
}

bool is_optimizer(const std::string& path) {
  return path.find("/optim/") != path.npos && path.ends_with(".pt") && !path.ends_with(".info.pt");
}

/// Path inside the dict → dtype, shape and hash. Without 0-dim tensors, which golden.json has not.
json described(const SavedTree& tree) {
  TensorMap tensors;
  for (const auto& [place, data] : tree.tensors)
    if (!data.shape.empty()) tensors.emplace(place, data);
  return describe_tensors(tensors);
}

json without_masters(json tensors) {
  for (auto entry = tensors.begin(); entry != tensors.end();)
    entry = entry.key().starts_with("sharded_master_weights/") ? tensors.erase(entry) : std::next(entry);
  return tensors;
}

/// The names of each group's parameters, whose numbers `ids` lists.
json groups_of(const SavedTree& tree, const json& ids) {
  json groups = json::array();
  for (const auto& group : tree.structure.at("param_groups")) {
    json names = json::array();
    for (const auto& id : group.at("params")) names.push_back(ids.at(std::to_string(id.get<int>())));
    groups.push_back(names);
  }
  return groups;
}

}  // namespace

void GoldenOutput::check_files() const {
  std::vector<std::string> expected;
  for (const auto& [file, tensors] : golden.at("files").items()) {
    INFO(file);
    REQUIRE(fs::exists(output / file));
    CHECK(describe_tensors(tensors_of(read_container(output / file, format))) == tensors);
    expected.push_back(file);
  }
  CHECK(weight_files(output) == expected);
}

void GoldenOutput::check_ranks(const std::string& without) const {
  json expected = json::object(), found = json::object();
  const std::regex pattern(without);
  for (const auto& [file, tensors] : golden.at("files").items()) {
    if (rank_in(file).empty() || is_optimizer(file)) continue;
    for (const auto& [name, tensor] : tensors.items())
      if (without.empty() || !std::regex_search(name, pattern)) expected[rank_in(file)][name] = tensor;
  }
  for (const std::string& file : weight_files(output))
    found[rank_in(file)].update(describe_tensors(tensors_of(read_container(output / file, format))));
  CHECK(found == expected);
}

void GoldenOutput::check_as(const fs::path& reference) const {
  const auto ours = snapshot(output), theirs = snapshot(reference);
  for (const auto& [name, content] : theirs) {
    INFO(name);
    REQUIRE(ours.count(name) == 1);
    if (name.ends_with(".json") && fs::path(name).filename() != "config.json")
      CHECK(json::parse(ours.at(name)) == json::parse(content));
    else if (name.find(".pt") == name.npos)
      CHECK((ours.at(name) == content));
    else if (name.ends_with(".pt"))
      (format == Format::kXser ? check_xser_file : check_torch_file)(output / name, reference / name);
  }
  CHECK(ours.size() == theirs.size());
  const std::size_t crcs = check_crcs(output);
  if (format != Format::kSafetensors) CHECK(crcs > 0);
}

void GoldenOutput::check_json(const std::string& folder, const fs::path& reference) const {
  const auto files_in = [](const fs::path& directory) {
    std::map<std::string, json> files;
    for (const auto& [name, content] : snapshot(directory))
      if (name.ends_with(".json")) files[name] = json::parse(content);
    return files;
  };
  CHECK_FALSE(files_in(reference).empty());
  CHECK(files_in(output / folder) == files_in(reference));
}

void GoldenOutput::check_digests(const std::string& file, const std::string& pointer) const {
  INFO(file);
  const fs::path path = output / file;
  const TensorMap tensors = tensors_of(read_container(path, format_of_file(path)));
  CHECK(describe_tensors(tensors) == golden.at(json::json_pointer(pointer)));
}

void GoldenOutput::check_names(const json& expected) const {
  Fields fields(expected, "tensor_names");
  const std::string prefix = fields.get<std::string>("after");
  std::vector<std::string> names;
  const auto ranks = read_shards(output);
  for (const auto& [name, tensor] : ranks.begin()->second)
    if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
  CHECK(json(names) == *fields.find("are"));
  fields.validate();
}

void GoldenOutput::check_states(const json& expected) const {
  Fields fields(expected, "states");
  const json reference = json::parse(read_file(golden_case / fields.get<std::string>("as", "golden.json")))
                             .at(json::json_pointer(fields.get<std::string>("at")));
  const fs::path folder = output / fields.get<std::string>("in");
  const bool has_masters = fields.get("masters", true);
  const bool masters_differ = fields.get("masters_differ", false);
  fields.validate();
  std::size_t files = 0;
  for (const auto& [path, tensors] : reference.at("files").items()) {
    if (!is_optimizer(path)) continue;
    INFO(path);
    ++files;
    const SavedTree tree = read_saved_tree(folder / "optim" / fs::path(path).filename());
    const json ours = described(tree);
    if (has_masters && !masters_differ)
      CHECK(ours == tensors);
    else
      CHECK(without_masters(ours) == without_masters(tensors));
    if (masters_differ) CHECK(ours != tensors);
    if (const auto all = reference.find("parameters"); all != reference.end()) {
      const json& parameters = all->at(rank_of_reference(path));
      CHECK(groups_of(tree, parameters.at("ids")) == parameters.at("groups"));
      CHECK(tree.structure.at("sharded_master_weights").size() == parameters.at("ids").size());
    }
    if (!reference.contains("structure") || !reference.at("structure").contains(path)) continue;
    nlohmann::ordered_json structure = tree.structure;  // keys in the reference's order
    if (!has_masters) structure.erase("sharded_master_weights");
    const auto their = nlohmann::ordered_json::parse(read_file(golden_case / "golden.json")).at("structure").at(path);
    CHECK(structure.dump(1) == their.dump(1));
  }
  CHECK(files == read_saved_trees(folder / "optim").size());
}

void GoldenOutput::check_blocks(const Job& job, std::uint64_t block_bytes) const {
  INFO("blocks of " << block_bytes << " bytes");
  const TempDir temp;
  run_in_blocks(job, temp / "blocks", block_bytes, 3);
  for (const TargetFile& file : job.target.files)
    CHECK((read_file(temp / "blocks" / file.path) == read_file(output / file.path)));
}

}  // namespace reshard::test
