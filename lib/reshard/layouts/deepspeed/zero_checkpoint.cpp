#include "reshard/layouts/deepspeed/zero_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"
#include "reshard/formats/common/open_weights.h"
#include "reshard/io/read_each.h"
#include "reshard/layouts/deepspeed/zero_folder.h"
#include "reshard/layouts/deepspeed/zero_partitions.h"
#include "reshard/tensor/cast/cast.h"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// The parameters in the folders of a universal checkpoint.
struct UniversalMasters {
  std::vector<ContainerFile> files;  // fp32.pt of each parameter, referred to by ZeroMasters::runs
  ZeroMasters masters;
  TensorCount unread;  // master weights, if they are not read
  TensorCount state;   // moments, one file each
};

constexpr const char* kMasterFile = "fp32.pt";
constexpr const char* kMomentFiles[] = {"exp_avg.pt", "exp_avg_sq.pt"};

void count_file(Files& files, const fs::path& path, TensorCount& count) {
  if (!files.is_file(path)) return;
  ++count.tensors;
  count.bytes += files.size_bytes(path);
}

/// Validates that every folder belongs to a parameter.
void validate_folders(Files& files, const fs::path& zero, const ZeroModelStates& model) {
  std::set<std::string_view> names;
  for (const auto& group : model.groups)
    for (const ZeroParameter& parameter : group) names.insert(parameter.name);
  for (const DirectoryEntry& entry : files.list(zero))
    if (entry.kind == FileKind::kDirectory && !names.count(entry.name))
      throw Error(ErrorKind::kBadInput, fmt::format("is the folder of a parameter that \"param_shapes\" of {} does not "
                                                    "have",
                                                    model.file.path.filename().string()))
          .in(zero / entry.name)
          .hint("files of two checkpoints are mixed in one folder");
}

/// Finds the master weights in `folder`/zero/PARAMETER/fp32.pt. They have the parameter's shape, or one dim if
/// converted from ZeRO 3. Counts the moments.
/// \param model       Declares the parameters and their shapes.
/// \param wanted      If false, opens no files and only counts the master weights.
/// \param first_file  FlatRun::file of the first file.
/// \throws Error kBadInput, naming the parameter or its file, if a parameter has no folder, a folder has no parameter,
/// or a tensor does not have the parameter's shape; as read_zero_parameter.
UniversalMasters read_universal_masters(Files& files, const fs::path& folder, const ZeroModelStates& model, bool wanted,
                                        std::uint32_t first_file) {
  const fs::path zero = folder / kUniversalFolder;
  validate_folders(files, zero, model);
  UniversalMasters found;
  std::vector<fs::path> paths;
  for (const auto& group : model.groups)
    for (const ZeroParameter& parameter : group) {
      const bool is_name = parameter.name.find('/') == std::string::npos && parameter.name != "..";
      const fs::path path = zero / parameter.name / kMasterFile;
      if (!is_name || !files.is_file(path))
        throw Error(ErrorKind::kBadInput, fmt::format("has no file {}", kMasterFile))
            .in(zero)
            .tensor(parameter.name)
            .hint("copy the folders of all parameters here");
      for (const char* moment : kMomentFiles) count_file(files, path.parent_path() / moment, found.state);
      if (!wanted) count_file(files, path, found.unread);
      paths.push_back(path);
    }
  if (!wanted) return found;
  auto reads = read_each(paths.size(), [&](std::size_t i) {
    ContainerFile file;
    TensorEntry entry = read_zero_parameter(files, paths[i], file);
    return std::pair(std::move(entry), std::move(file));
  });
  for (const auto& group : model.groups)
    for (const ZeroParameter& parameter : group) {
      const fs::path& path = paths[found.files.size()];
      auto [entry, file] = reads[found.files.size()].get();
      const std::uint64_t elems = *num_elems(parameter.shape);
      const bool flat = entry.shape.size() == 1 && entry.shape[0] == elems;
      if (entry.shape != parameter.shape && !flat)
        throw Error(ErrorKind::kBadInput, fmt::format("has the shape {}, but \"param_shapes\" says {}",
                                                      to_string(entry.shape), to_string(parameter.shape)))
            .in(path)
            .tensor(parameter.name);
      if (!entry.strides.empty())
        throw Error(ErrorKind::kUnsupported, "is not stored in C order").in(path).tensor(parameter.name);
      if (found.files.empty()) found.masters.dtype = entry.dtype;
      if (entry.dtype != found.masters.dtype)
        throw Error(ErrorKind::kBadInput,
                    fmt::format("is {}, but others are {}", name(entry.dtype), name(found.masters.dtype)))
            .in(path)
            .tensor(parameter.name);
      found.masters.runs[parameter.name] = {
          {first_file + static_cast<std::uint32_t>(found.files.size()), entry.offset_bytes, 0, elems}};
      found.files.push_back(std::move(file));
    }
  return found;
}

constexpr const char* kMixedFiles = "files of two checkpoints are mixed, or some are missing";

Error bad(const fs::path& file, std::string message) {
  return Error(ErrorKind::kBadInput, std::move(message)).in(file);
}

/// Validates that the model states of two ranks in stage 3 are equal, except for their fragments.
void validate_same(const ZeroModelStates& first, const ZeroModelStates& other) {
  const auto refuse = [&](const char* key) {
    throw bad(other.file.path,
              fmt::format("its \"{}\" differs from that of {}", key, first.file.path.filename().string()))
        .hint(kMixedFiles);
  };
  if (other.groups != first.groups) refuse("param_shapes");
  if (other.frozen != first.frozen) refuse("frozen_param_shapes");
  if (other.global_steps != first.global_steps) refuse("global_steps");
}

/// Validates that the optimizers of all ranks that record it have made the same number of steps.
void validate_same_step(const std::vector<ZeroOptimStates>& states) {
  const ZeroOptimStates* first = nullptr;
  for (const ZeroOptimStates& one : states) {
    if (!one.step) continue;
    if (first == nullptr) first = &one;
    if (*one.step != *first->step)
      throw bad(one.file.path, fmt::format("its optimizer has made {} steps, but that of {} {}", *one.step,
                                           first->file.path.filename().string(), *first->step))
          .hint(kMixedFiles);
  }
}

/// Returns the first bytes of a rank's weights; empty if they have few different values, as new weights may.
std::vector<std::byte> sample_of(const Source& source, const TensorEntry& masters) {
  constexpr std::uint64_t kBytes = 4096;
  constexpr std::size_t kFewValues = 16;
  std::vector<std::byte> bytes(std::min(masters.size_bytes, kBytes));
  source.read_at(masters.offset_bytes, bytes);
  std::set<std::string_view> values;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  for (std::size_t at = 0; at + 4 <= text.size(); at += 4) values.insert(text.substr(at, 4));
  return values.size() > kFewValues ? bytes : std::vector<std::byte>();
}

bool have_same_bytes(const Source& a, const TensorEntry& in_a, const Source& b, const TensorEntry& in_b) {
  constexpr std::uint64_t kBlockBytes = std::uint64_t{1} << 20;
  if (in_a.size_bytes != in_b.size_bytes) return false;
  std::vector<std::byte> x, y;
  for (std::uint64_t at = 0; at < in_a.size_bytes; at += kBlockBytes) {
    x.resize(std::min(kBlockBytes, in_a.size_bytes - at));
    y.resize(x.size());
    a.read_at(in_a.offset_bytes + at, x);
    b.read_at(in_b.offset_bytes + at, y);
    if (x != y) return false;
  }
  return true;
}

/// Validates that no two ranks have the same weights, as when a file was copied over another.
void validate_weights_differ(Files& files, const std::vector<ZeroOptimStates>& states) {
  std::map<std::vector<std::byte>, const ZeroOptimStates*> seen;
  for (const ZeroOptimStates& rank : states) {
    if (rank.masters.empty()) continue;
    const auto source = open_weights(files, rank.file.path);
    std::vector<std::byte> sample = sample_of(*source, rank.masters.front());
    if (sample.empty()) continue;
    const auto [other, is_new] = seen.emplace(std::move(sample), &rank);
    if (is_new) continue;
    const auto open_other = open_weights(files, other->second->file.path);
    if (have_same_bytes(*source, rank.masters.front(), *open_other, other->second->masters.front()))
      throw bad(rank.file.path, fmt::format("has the same weights as {}", other->second->file.path.filename().string()))
          .hint("one of the files was copied over the other: copy the rank's own file here");
  }
}

/// Assembles a checkpoint from the files of a tag folder.
class Builder {
 public:
  Builder(Files& files, const fs::path& folder, ZeroWeights weights)
      : files_(files), folder_(list_zero_folder(files, folder)), weights_(weights) {}

  ZeroCheckpoint build() && {
    read_model_states();
    read_masters();
    take_module();
    take_others();
    take_shared();
    return std::move(result_);
  }

 private:
  void read_model_states();
  void read_masters();
  void take_module();
  void take_others();
  void take_shared();

  std::uint32_t add_file(const ContainerFile& file) {
    result_.files.push_back(file);
    return static_cast<std::uint32_t>(result_.files.size() - 1);
  }
  ZeroTensor& add(ZeroTensor tensor) {
    by_name_.emplace(tensor.name, result_.tensors.size());
    result_.tensors.push_back(std::move(tensor));
    return result_.tensors.back();
  }
  /// Returns a tensor that is stored whole in a file.
  static ZeroTensor whole_tensor(const TensorEntry& entry, std::uint32_t file) {
    return {
        entry.name,    entry.dtype, entry.shape, {{file, entry.offset_bytes, 0, num_elems(entry.shape).value_or(0)}},
        entry.strides, {},          {}};
  }
  bool takes_masters() const { return weights_ == ZeroWeights::kMaster || !module_is_whole_; }
  ZeroTensor trained(const ZeroParameter& parameter, std::optional<DType> model_dtype);
  ZeroTensor frozen(const ZeroParameter& parameter) const;
  void validate_shape(const TensorEntry& entry, const ZeroParameter& parameter, const char* key) const;

  Files& files_;
  ZeroFolder folder_;
  ZeroWeights weights_;
  ZeroCheckpoint result_;
  std::vector<ZeroModelStates> models_;  // one, or one per rank in stage 3; after the first, fragments only
  std::uint32_t first_model_file_ = 0;
  bool module_is_whole_ = true;
  ZeroMasters masters_;
  std::unordered_map<std::string, const ZeroParameter*> trained_, frozen_;
  std::unordered_set<std::string> shared_;
  std::vector<std::unordered_map<std::string, const TensorEntry*>> fragments_;  // per element of models_
  std::unordered_map<std::string, std::size_t> by_name_;
};

void Builder::read_model_states() {
  std::vector<fs::path> paths;
  if (folder_.model_states) paths.push_back(*folder_.model_states);
  for (const auto& [rank, path] : folder_.ranks_model_states) paths.push_back(path);
  first_model_file_ = static_cast<std::uint32_t>(result_.files.size());
  for (auto& read : read_each(paths.size(), [&](std::size_t i) { return read_zero_model_states(files_, paths[i]); })) {
    ZeroModelStates states = read.get();
    if (states.model_parallel_size > 1)
      throw Error(
          ErrorKind::kUnsupported,
          fmt::format("belongs to one of {} model-parallel ranks; only checkpoints without model parallelism are "
                      "read",
                      states.model_parallel_size))
          .in(states.file.path)
          .hint("load it in the training code, and save the whole weights there");
    add_file(states.file);
    if (!models_.empty()) {
      validate_same(models_.front(), states);
      states.groups.clear();
      states.frozen.clear();
      states.module.clear();
    }
    models_.push_back(std::move(states));
  }
  module_is_whole_ = folder_.model_states.has_value() && !models_.front().module.empty();
  const ZeroModelStates& first = models_.front();
  for (const auto& group : first.groups)
    for (const ZeroParameter& parameter : group) trained_.emplace(parameter.name, &parameter);
  for (const ZeroParameter& parameter : first.frozen) frozen_.emplace(parameter.name, &parameter);
  for (const auto& [name, target] : first.shared) {
    shared_.insert(name);
    if (trained_.count(name) || frozen_.count(name))
      throw bad(first.file.path, "is in \"shared_params\", but has its own weights").tensor(name);
  }
  for (const ZeroModelStates& states : models_) {
    auto& held = fragments_.emplace_back();
    for (const TensorEntry& entry : states.frozen_fragments) held.emplace(entry.name, &entry);
  }
}

void Builder::read_masters() {
  const fs::path& shapes_file = models_.front().file.path;
  result_.is_universal = folder_.is_universal;
  if (folder_.is_universal) {
    UniversalMasters universal = read_universal_masters(files_, folder_.path, models_.front(), takes_masters(),
                                                        static_cast<std::uint32_t>(result_.files.size()));
    for (const ContainerFile& file : universal.files) add_file(file);
    masters_ = std::move(universal.masters);
    result_.state = universal.state;
    result_.unread_masters = universal.unread;
    return;
  }
  if (folder_.optim_states.empty()) {
    if (takes_masters())
      throw bad(folder_.path, "contains no *_optim_states.pt, which have the master weights")
          .hint(module_is_whole_ ? "leave out `weights` to read the weights that the model runs with"
                                 : "copy the files of all ranks here");
    return;
  }
  std::vector<fs::path> paths;
  for (const auto& [rank, path] : folder_.optim_states) paths.push_back(path);
  std::vector<ZeroOptimStates> states;
  for (auto& read : read_each(paths.size(), [&](std::size_t i) { return read_zero_optim_states(files_, paths[i]); }))
    states.push_back(read.get());
  validate_same_step(states);
  result_.stage = states.front().stage;
  // MiCS divides the parameters among the first ranks; further groups of as many ranks have replicas of the states.
  const std::size_t group = models_.size();
  if (result_.stage == 3 && states.size() % group == 0 && states.front().partition_count == std::vector{group}) {
    result_.replica_files = static_cast<std::uint32_t>(states.size() - group);
    states.erase(states.begin() + static_cast<std::ptrdiff_t>(group), states.end());
  }
  validate_weights_differ(files_, states);
  result_.ranks = static_cast<std::uint32_t>(states.size());
  const ZeroRanks ranks{states, static_cast<std::uint32_t>(result_.files.size())};
  if (result_.stage == 3 && folder_.model_states)
    throw bad(states.front().file.path,
              fmt::format("belongs to ZeRO 3, but {} to ZeRO 1 or 2", folder_.model_states->filename().string()))
        .hint(kMixedFiles);
  if (result_.stage == 3 && models_.size() != states.size())
    throw bad(folder_.path, fmt::format("contains *_optim_states.pt of {} ranks, but *_model_states.pt of {}",
                                        states.size(), models_.size()))
        .hint("copy the files of all ranks here");
  masters_ = place_masters(ranks, models_.front().groups, shapes_file);
  for (const ZeroOptimStates& rank : states) {
    result_.state.tensors += rank.state.tensors;
    result_.state.bytes += rank.state.bytes;
    if (takes_masters()) {
      add_file(rank.file);
      continue;
    }
    result_.unread_masters.tensors += rank.masters.size();
    for (const TensorEntry& master : rank.masters) result_.unread_masters.bytes += master.size_bytes;
  }
}

void Builder::validate_shape(const TensorEntry& entry, const ZeroParameter& parameter, const char* key) const {
  if (entry.shape == parameter.shape) return;
  throw bad(models_.front().file.path, fmt::format("has the shape {} in \"module\", but {} in \"{}\"",
                                                   to_string(entry.shape), to_string(parameter.shape), key))
      .tensor(entry.name);
}

ZeroTensor Builder::trained(const ZeroParameter& parameter, std::optional<DType> model_dtype) {
  ZeroTensor tensor{
      parameter.name, masters_.dtype, parameter.shape, std::move(masters_.runs[parameter.name]), {}, {}, {}};
  const bool other = model_dtype && *model_dtype != tensor.dtype && can_cast(tensor.dtype, *model_dtype);
  if (weights_ == ZeroWeights::kModel && other) tensor.model_dtype = model_dtype;
  return tensor;
}

/// Returns a frozen parameter, which is stored whole in one file, or in stage 3 as equal parts, the last of them
/// padded.
ZeroTensor Builder::frozen(const ZeroParameter& parameter) const {
  const std::uint64_t elems = *num_elems(parameter.shape);
  const bool split = !folder_.model_states;
  const std::uint64_t each = split ? elems_per_rank(elems, models_.size()) : elems;
  ZeroTensor tensor{parameter.name, DType::kF32, parameter.shape, {}, {}, {}, {}};
  for (std::size_t rank = 0; rank < models_.size(); ++rank) {
    const ZeroModelStates& states = models_[rank];
    const auto found = fragments_[rank].find(parameter.name);
    if (found == fragments_[rank].end())
      throw bad(states.file.path, "is in \"frozen_param_shapes\", but not in \"frozen_param_fragments\"")
          .tensor(parameter.name)
          .hint(
              "the checkpoint was saved without frozen parameters: take them from the model that the training started "
              "from");
    const TensorEntry& entry = *found->second;
    if (rank == 0) tensor.dtype = entry.dtype;
    const Dims expected = split ? Dims{each} : parameter.shape;
    if (entry.shape != expected || (split && !entry.strides.empty()) || entry.dtype != tensor.dtype)
      throw bad(states.file.path,
                fmt::format("is {} {} in \"frozen_param_fragments\", but should be {} {}", name(entry.dtype),
                            to_string(entry.shape), name(tensor.dtype), to_string(expected)))
          .tensor(parameter.name)
          .hint(kMixedFiles);
    const std::uint64_t begin = std::min(rank * each, elems), end = std::min(begin + each, elems);
    if (begin < end)
      tensor.runs.push_back(
          {first_model_file_ + static_cast<std::uint32_t>(rank), entry.offset_bytes, begin, end - begin});
    if (!split) tensor.strides = entry.strides;
  }
  return tensor;
}

/// Adds the tensors of the state dict, in its order.
void Builder::take_module() {
  const ZeroModelStates& first = models_.front();
  std::unordered_set<std::string_view> buffers(first.buffer_names.begin(), first.buffer_names.end());
  for (const TensorEntry& entry : first.module) {
    const auto in_trained = trained_.find(entry.name);
    const auto in_frozen = frozen_.find(entry.name);
    if (module_is_whole_) {
      if (in_trained != trained_.end()) validate_shape(entry, *in_trained->second, "param_shapes");
      if (in_frozen != frozen_.end()) validate_shape(entry, *in_frozen->second, "frozen_param_shapes");
    }
    if (in_trained != trained_.end() && takes_masters()) {
      add(trained(*in_trained->second, entry.dtype));
    } else if (in_frozen != frozen_.end() && !module_is_whole_) {
      add(frozen(*in_frozen->second));
    } else if (!shared_.count(entry.name) || !takes_masters()) {
      if (!module_is_whole_ && !buffers.count(entry.name))
        throw bad(first.file.path,
                  "is in \"module\", but its values are missing: it is neither a buffer nor in \"param_shapes\", "
                  "\"frozen_param_shapes\" or \"shared_params\"")
            .tensor(entry.name);
      add(whole_tensor(entry, first_model_file_));
    }
  }
}

/// Adds parameters that the state dict does not contain.
void Builder::take_others() {
  const ZeroModelStates& first = models_.front();
  for (const auto& group : first.groups)
    for (const ZeroParameter& parameter : group) {
      if (by_name_.count(parameter.name)) continue;
      if (!takes_masters())
        throw bad(first.file.path, "is in \"param_shapes\", but not in \"module\"").tensor(parameter.name);
      add(trained(parameter, {}));
    }
  for (const ZeroParameter& parameter : first.frozen) {
    if (by_name_.count(parameter.name)) continue;
    const bool saved = fragments_.front().count(parameter.name) != 0;
    if (saved || !module_is_whole_) add(frozen(parameter));
  }
}

/// Adds the second names of shared tensors.
void Builder::take_shared() {
  const ZeroModelStates& first = models_.front();
  for (const auto& [name, target] : first.shared) {
    const auto source = by_name_.find(target);
    if (source == by_name_.end())
      throw bad(first.file.path,
                fmt::format("\"shared_params\" maps it to {}, which has no weights", printable(target)))
          .tensor(name);
    if (const auto own = by_name_.find(name); own != by_name_.end()) {
      result_.tensors[own->second].shared_with = target;
      continue;
    }
    ZeroTensor copy = result_.tensors[source->second];
    copy.name = name;
    copy.shared_with = target;
    add(std::move(copy));
  }
}

}  // namespace

ZeroCheckpoint read_zero_checkpoint(Files& files, const fs::path& folder, ZeroWeights weights) {
  return Builder(files, folder, weights).build();
}

}  // namespace reshard
