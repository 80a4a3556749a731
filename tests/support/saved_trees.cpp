#include "support/saved_trees.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "reshard/formats/pickle/pickle_values.h"
#include "reshard/formats/torch/state_dict.h"
#include "reshard/formats/torch/torch_file.h"
#include "reshard/io/local_storage.h"
#include "support/catch.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/saved_file.h"
#include "support/strided.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class TreeReader {
 public:
  explicit TreeReader(const fs::path& path) : path_(path), file_(read_torch_file(path)) {}

  SavedTree read() {
    tree_.structure = value(file_.pickle().root(), "");
    return std::move(tree_);
  }

 private:
  Json value(PickleRef node, const std::string& place) {
    const Pickle& pickle = file_.pickle();
    if (file_.is_tensor(node)) return add(file_.tensor(node, place), path_, place);
    if (is_xser_reference(pickle, node)) return referenced(node, place);
    if (is_mapping(pickle, node)) {
      Json dict = Json::object();
      for (const auto& [key, item] : mapping_items(pickle, node)) {
        const bool is_number = pickle.kind(key) == PickleKind::kInt;
        const std::string name = is_number ? std::to_string(pickle.integer(key)) : std::string(pickle.text(key));
        dict[is_number ? "int " + name : name] = value(item, place.empty() ? name : place + "/" + name);
      }
      return dict;
    }
    switch (pickle.kind(node)) {
      case PickleKind::kNone: return nullptr;
      case PickleKind::kBool: return pickle.integer(node) != 0;
      case PickleKind::kInt: return pickle.integer(node);
      case PickleKind::kFloat: return pickle.real(node);
      case PickleKind::kString: return std::string(pickle.text(node));
      case PickleKind::kList: return list(node, place);
      default: return "another " + pickle.describe(node);
    }
  }

  Json list(PickleRef node, const std::string& place) {
    Json items = Json::array();
    for (const PickleRef item : file_.pickle().items(node)) items.push_back(value(item, place));
    return items;
  }

  Json referenced(PickleRef node, const std::string& place) {
    const Pickle& pickle = file_.pickle();
    const auto number = pickle.integer(pickle.pairs(pickle.state(node)).front().second);
    const fs::path path = xser_tensor_path(path_, static_cast<std::uint64_t>(number));
    const TorchFile one = read_torch_file(path);
    return add(one.tensor(one.pickle().root(), place), path, place);
  }

  Json add(const TorchTensor& tensor, const fs::path& path, const std::string& place) {
    const TensorEntry entry{
        place, tensor.dtype,  tensor.shape, tensor.offset_bytes, num_bytes(tensor.dtype, tensor.shape).value(),
        0,     tensor.strides};
    tree_.tensors[place] = {tensor.dtype, tensor.shape, c_order_bytes(entry, *local_storage().open(path))};
    Json shape = Json::array();
    for (const std::uint64_t size : tensor.shape) shape.push_back(size);
    return {{"tensor", describe(tensor.dtype).torch_name}, {"shape", shape}};
  }

  const fs::path& path_;
  TorchFile file_;
  SavedTree tree_;
};

class TreeWriter {
 public:
  TreeWriter(const fs::path& path, const SavedTree& tree, bool xser) : path_(path), tree_(tree), xser_(xser) {}

  void write() {
    if (xser_) fs::create_directories(xser_tensors_folder(path_));
    fs::create_directories(path_.parent_path());
    const std::string root = value(tree_.structure, "");
    file_.save(path_, root);
  }

 private:
  std::string value(const Json& json, const std::string& place) {
    using namespace pickles;
    if (json.is_object() && json.contains("tensor")) return tensor(tree_.tensors.at(place));
    if (json.is_object()) {
      std::string items = "}(";
      for (const auto& [key, item] : json.items()) {
        const bool is_number = key.starts_with("int ");
        const std::string name = is_number ? key.substr(4) : key;
        items += (is_number ? number(std::stoll(name)) : text(name)) +
                 value(item, place.empty() ? name : place + "/" + name);
      }
      return items + "u";
    }
    if (json.is_array()) {
      std::vector<std::string> items;
      for (const Json& item : json) items.push_back(value(item, place));
      return list(items);
    }
    if (json.is_boolean()) return json.get<bool>() ? kTrue : kFalse;
    if (json.is_number_integer()) return number(json.get<std::int64_t>());
    if (json.is_string()) return text(json.get<std::string>());
    if (json.is_null()) return kNone;
    std::string real = le_bytes(std::bit_cast<std::uint64_t>(json.get<double>()));
    std::reverse(real.begin(), real.end());
    return "G" + real;
  }

  std::string tensor(const TensorData& data) {
    if (!xser_) return file_.tensor(data);
    SavedFile one;
    const std::string root = one.tensor(data);
    one.save(xser_tensor_path(path_, static_cast<std::uint64_t>(tensors_)), root);
    return pickles::object("torch_xla.utils.serialization", "TensorReference",
                           pickles::dict({{"tid", pickles::number(tensors_++)}, {"type", pickles::text("tensor")}}));
  }

  const fs::path& path_;
  const SavedTree& tree_;
  bool xser_;
  std::int64_t tensors_ = 0;
  SavedFile file_;
};

}  // namespace

SavedTree read_saved_tree(const fs::path& path) {
  return TreeReader(path).read();
}

std::map<std::string, SavedTree> read_saved_trees(const fs::path& directory) {
  std::map<std::string, SavedTree> trees;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(directory)) {
    const std::string path = fs::relative(entry.path(), directory).string();
    const bool beside = path.find(".pt.tensors/") != path.npos || path.ends_with(".info.pt");
    if (entry.is_regular_file() && path.ends_with(".pt") && !beside) trees.emplace(path, read_saved_tree(entry.path()));
  }
  return trees;
}

void check_saved_trees(const std::filesystem::path& directory, const std::map<std::string, SavedTree>& expected) {
  const auto written = read_saved_trees(directory);
  REQUIRE(written.size() == expected.size());
  for (const auto& [path, tree] : expected) {
    INFO(path);
    REQUIRE(written.count(path) == 1);
    CHECK(written.at(path).structure.dump(1) == tree.structure.dump(1));
    REQUIRE(written.at(path).tensors.size() == tree.tensors.size());
    for (const auto& [place, data] : tree.tensors) {
      INFO(place);
      CHECK((written.at(path).tensors.at(place) == data));
    }
  }
}

void write_saved_tree(const fs::path& path, const SavedTree& tree, bool xser) {
  TreeWriter(path, tree, xser).write();
}

void add_under(SavedTree& whole, const std::string& key, const SavedTree& tree, bool in_list) {
  if (in_list)
    whole.structure[key].push_back(tree.structure);
  else
    whole.structure[key] = tree.structure;
  for (const auto& [place, data] : tree.tensors) whole.tensors[key + "/" + place] = data;
}

}  // namespace reshard::test
