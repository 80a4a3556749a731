#include "support/zero_files.h"

#include <algorithm>
#include <cstring>

#include "support/pickles.h"
#include "support/saved_file.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;
using namespace pickles;
using Items = std::vector<std::pair<std::string, std::string>>;

/// The bytes of elements [begin, end), filled with noise where there are none.
std::string part_of(const std::string& bytes, std::uint64_t elem_bytes, std::uint64_t begin, std::uint64_t end,
                    Random& random) {
  std::string part((end - begin) * elem_bytes, '\0');
  for (char& byte : part) byte = static_cast<char>(random());
  const std::uint64_t from = std::min<std::uint64_t>(begin * elem_bytes, bytes.size());
  const std::uint64_t to = std::min<std::uint64_t>(end * elem_bytes, bytes.size());
  if (from < to) std::memcpy(part.data(), bytes.data() + from, to - from);
  return part;
}

std::uint64_t divided_up(std::uint64_t count, std::uint64_t by) {
  return (count + by - 1) / by;
}

/// Everything of the module's state but the tensors of one rank.
class Writer {
 public:
  Writer(const fs::path& folder, const ZeroModel& model, unsigned stage, std::uint32_t ranks, Random& random)
      : folder_(folder), model_(model), stage_(stage), ranks_(ranks), random_(random) {}

  void write_model_states() {
    if (stage_ < 3) return write_model_states(0, folder_ / "mp_rank_00_model_states.pt");
    for (std::uint32_t rank = 0; rank < ranks_; ++rank)
      write_model_states(rank, folder_ / ("zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_model_states.pt"));
  }

  /// Of stages 1 and 2.
  void write_partitions() {
    std::vector<std::vector<std::string>> partitions(ranks_);  // of each rank, each group
    std::vector<std::vector<Items>> slices(ranks_);
    for (const auto& group : model_.groups) {
      std::string flat;
      for (const std::string& name : group) {
        flat += model_.masters.at(name).bytes;
        flat += std::string(4 * padding_after(name), 'p');
      }
      const std::uint64_t elems = flat.size() / 4;
      const std::uint64_t each = divided_up(elems, 2 * ranks_) * 2;
      const std::uint64_t padding = each * ranks_ - elems;
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
        const bool last = rank + 1 == ranks_;
        std::uint64_t end = (rank + 1) * each - (last ? std::min(padding, each) : 0);
        if (model_.lean_ranks) end = std::clamp(elems, rank * each, (rank + 1) * each);
        partitions[rank].push_back(part_of(flat, 4, rank * each, end, random_));
        slices[rank].push_back(slices_of(group, rank * each, (rank + 1) * each));
      }
    }
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      SavedFile file;
      std::vector<std::string> masters, mappings, counts;
      for (const std::string& bytes : partitions[rank]) {
        masters.push_back(file.flat(DType::kF32, bytes));
        counts.push_back(number(ranks_));
      }
      for (const Items& items : slices[rank]) mappings.push_back(dict(items));
      const std::string stage = call("deepspeed.runtime.zero.config", "ZeroStageEnum", {number(stage_)});
      Items states{{"base_optimizer_state", moments(file)},
                   {"single_partition_of_fp32_groups", list(masters)},
                   {"zero_stage", stage},
                   {"partition_count", list(counts)},
                   {"param_slice_mappings", list(mappings)}};
      if (model_.alignment_elems > 1) states.emplace_back("param_alignment_paddings", paddings());
      save_states(file, rank, states);
    }
  }

  void write_sub_groups(std::uint64_t sub_groups) {
    std::vector<std::vector<std::string>> cut;
    for (const auto& group : model_.groups) {
      cut.emplace_back();
      for (const std::string& name : group) {
        if (!cut.back().empty() && random_() % 4 < sub_groups - 1) cut.emplace_back();
        cut.back().push_back(name);
      }
    }
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      SavedFile file;
      std::vector<std::string> masters;
      for (const auto& names : cut) {
        std::string row;
        for (const std::string& name : names) {
          const std::string& bytes = model_.masters.at(name).bytes;
          const std::uint64_t each = divided_up(bytes.size() / 4, ranks_);
          row += part_of(bytes, 4, rank * each, (rank + 1) * each, random_);
        }
        masters.push_back(file.flat(DType::kF32, row));
      }
      save_states(file, rank,
                  {{"zero_stage", call("deepspeed.runtime.zero.config", "ZeroStageEnum", {number(3)})},
                   {"partition_count", number(ranks_)},
                   {"optimizer_state_dict", moments(file)},
                   {"fp32_flat_groups", list(masters)}});
    }
  }

 private:
  std::uint64_t padding_after(const std::string& name) const {
    const std::uint64_t elems = model_.masters.at(name).bytes.size() / 4;
    return divided_up(elems, model_.alignment_elems) * model_.alignment_elems - elems;
  }
  std::string paddings() const {
    std::vector<std::string> groups;
    for (const auto& group : model_.groups) {
      std::vector<std::string> items;
      for (const std::string& name : group) items.push_back(number(static_cast<std::int64_t>(padding_after(name))));
      groups.push_back(list(items));
    }
    return list(groups);
  }

  Items slices_of(const std::vector<std::string>& group, std::uint64_t begin, std::uint64_t end) const {
    Items items;
    std::uint64_t at = 0;
    for (const std::string& name : group) {
      const std::uint64_t elems = model_.masters.at(name).bytes.size() / 4;
      const std::uint64_t from = std::max(at, begin), to = std::min(at + elems, end);
      if (from < to)
        items.emplace_back(name, object("deepspeed.utils.tensor_fragment", "fragment_address",
                                        dict({{"numel", number(static_cast<std::int64_t>(to - from))},
                                              {"start", number(static_cast<std::int64_t>(from - begin))}})));
      at += elems + padding_after(name);
    }
    return items;
  }

  std::string moments(SavedFile& file) {
    const std::string step = random_() % 2 ? number(model_.global_steps)
                                           : file.tensor(floats({}, {static_cast<float>(model_.global_steps)}));
    return dict({{"state", dict({{"0", dict({{"step", step}, {"exp_avg", file.flat(DType::kF32, "12345678")}})}})}});
  }

  void save_states(const SavedFile& file, std::uint32_t rank, const Items& items) const {
    file.save(folder_ / ("bf16_zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt"),
              dict({{"optimizer_state_dict", dict(items)}, {"ds_version", text("0.18.4")}}));
  }

  void write_model_states(std::uint32_t rank, const fs::path& path) {
    SavedFile file;
    Items module, frozen_shapes, fragments;
    for (const auto& [name, data] : model_.module) {
      const bool is_buffer = data.dtype != DType::kBF16;
      module.emplace_back(name, stage_ == 3 && !is_buffer ? file.tensor({data.dtype, {0}, ""}) : file.tensor(data));
    }
    std::shuffle(module.begin(), module.end(), random_);
    for (const std::string& name : model_.frozen) {
      const TensorData& data = model_.module.at(name);
      frozen_shapes.emplace_back(name, pickled_size(data.shape));
      const std::uint64_t each = divided_up(data.bytes.size() / 2, ranks_);
      fragments.emplace_back(
          name, stage_ < 3 ? file.tensor(data)
                           : file.flat(data.dtype, part_of(data.bytes, 2, rank * each, (rank + 1) * each, random_)));
    }
    std::vector<std::string> shapes, buffers;
    for (const std::string& name : model_.buffers) buffers.push_back(text(name));
    for (const auto& group : model_.groups) {
      Items items;
      for (const std::string& name : group) items.emplace_back(name, pickled_size(model_.masters.at(name).shape));
      shapes.push_back(dict(items));
    }
    file.save(path, dict({{"module", dict(module)},
                          {"buffer_names", list(buffers)},
                          {"param_shapes", list(shapes)},
                          {"frozen_param_shapes", dict(frozen_shapes)},
                          {"frozen_param_fragments", dict(fragments)},
                          {"shared_params", dict({})},
                          {"dp_world_size", number(ranks_)},
                          {"mp_world_size", number(1)},
                          {"global_steps", number(model_.global_steps)}}));
  }

  fs::path folder_;
  const ZeroModel& model_;
  unsigned stage_;
  std::uint32_t ranks_;
  Random& random_;
};

}  // namespace

ZeroModel random_zero_model(Random& random) {
  ZeroModel model;
  model.groups.resize(pick(random, 1, 3));
  const std::uint64_t count = pick(random, 1, 9);
  for (std::uint64_t i = 0; i < count; ++i) {
    const std::string name = "layer." + std::to_string(i) + ".weight";
    Dims shape(pick(random, 0, 4));
    for (std::uint64_t& size : shape) size = pick(random, 1, 7);
    model.module[name] = random_tensor(random, DType::kBF16, shape);
    if (random() % 4 == 0) {
      model.frozen.push_back(name);
      continue;
    }
    model.masters[name] = random_tensor(random, DType::kF32, shape);
    model.groups[random() % model.groups.size()].push_back(name);
  }
  model.module["steps"] = random_tensor(random, DType::kI64, {});
  model.alignment_elems = one_of(random, {1, 1, 4, 8});
  model.lean_ranks = random() % 2 == 0;
  return model;
}

void write_zero(const fs::path& folder, const ZeroModel& model, unsigned stage, std::uint32_t ranks,
                std::uint64_t sub_groups, Random& random) {
  fs::create_directories(folder);
  Writer writer(folder, model, stage, ranks, random);
  writer.write_model_states();
  if (stage == 3)
    writer.write_sub_groups(sub_groups);
  else
    writer.write_partitions();
}

void write_universal(const fs::path& folder, const ZeroModel& model, unsigned stage, std::uint32_t ranks,
                     Random& random) {
  fs::create_directories(folder / "zero");
  Writer(folder, model, stage, ranks, random).write_model_states();
  for (const auto& [name, data] : model.masters) {
    SavedFile file, moment;
    const std::string value =
        stage == 3 ? file.flat(data.dtype, data.bytes) : dict({{"cat_dim", number(0)}, {"param", file.tensor(data)}});
    file.save(folder / "zero" / name / "fp32.pt", value);
    moment.save(folder / "zero" / name / "exp_avg.pt", moment.flat(data.dtype, data.bytes));
  }
}

TensorMap master_tensors(const ZeroModel& model) {
  TensorMap tensors = model.module;
  for (const auto& [name, data] : model.masters) tensors[name] = data;
  return tensors;
}

}  // namespace reshard::test
