#include "reshard/layouts/deepspeed/zero_files.h"

#include "reshard/io/local_storage.h"
#include "support/files.h"
#include "support/pickles.h"
#include "support/refusals.h"
#include "support/temp_dir.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

using namespace pickles;
using Items = std::vector<std::pair<std::string, std::string>>;

const std::string kSize34 = call("torch", "Size", {numbers({3, 4})});

/// A file whose pickle is `root`, with a storage "0" of 12 floats.
std::filesystem::path saved(const TempDir& temp, const std::string& root) {
  write_file(temp / "file.pt", torch_zip(stream(root), {{"0", std::string(48, '\1')}}));
  return temp / "file.pt";
}

/// `items` with the value of one of them replaced, added, or, where it is empty, left out.
Items with(Items items, const std::string& key, const std::string& value) {
  std::erase_if(items, [&](const auto& item) { return item.first == key; });
  if (!value.empty()) items.emplace_back(key, value);
  return items;
}

const Items kModel{{"module", dict({{"w", tensor()}})},
                   {"buffer_names", list({text("b")})},
                   {"param_shapes", list({dict({{"w", kSize34}}), dict({})})},
                   {"frozen_param_shapes", dict({{"f", numbers({2})}})},
                   {"frozen_param_fragments", dict({{"f", tensor({.offset = 1, .shape = {2}, .strides = {1}})}})},
                   {"shared_params", dict({{"v", text("w")}})},
                   {"mp_world_size", number(1)}};

const std::string kFlat = tensor({.shape = {12}, .strides = {1}});
const std::string kMoments = dict({{"state", dict({{"0", dict({{"step", number(3)}, {"exp_avg", kFlat}})}})}});
const Items kOptim{
    {"zero_stage", call("deepspeed.runtime.zero.config", "ZeroStageEnum", {number(2)})},
    {"partition_count", list({number(2)})},
    {"single_partition_of_fp32_groups", list({kFlat})},
    {"base_optimizer_state", kMoments},
    {"param_slice_mappings", list({dict({{"w", object("deepspeed.utils.tensor_fragment", "fragment_address",
                                                      dict({{"numel", number(12)}, {"start", number(0)}}))}})})}};
const Items kOptim3{{"zero_stage", number(3)},
                    {"partition_count", number(4)},
                    {"fp32_flat_groups", list({kFlat, kFlat})},
                    {"optimizer_state_dict", kMoments}};

ZeroModelStates model_of(const TempDir& temp, const Items& items) {
  return read_zero_model_states(local_storage(), saved(temp, dict(items)));
}

ZeroOptimStates optim_of(const TempDir& temp, const Items& items) {
  return read_zero_optim_states(local_storage(), saved(temp, dict({{"optimizer_state_dict", dict(items)}})));
}

TEST_CASE("The model states of ZeRO are read with names, shapes and places") {
  const TempDir temp;
  const ZeroModelStates states = model_of(temp, kModel);
  REQUIRE(states.module.size() == 1);
  CHECK(states.module[0].shape == Dims{3, 4});
  CHECK(states.buffer_names == std::vector<std::string>{"b"});
  CHECK(states.groups == std::vector<std::vector<ZeroParameter>>{{{"w", {3, 4}}}, {}});
  CHECK(states.frozen == std::vector<ZeroParameter>{{"f", {2}}});
  REQUIRE(states.frozen_fragments.size() == 1);
  CHECK(states.frozen_fragments[0].offset_bytes == states.module[0].offset_bytes + 4);
  CHECK(states.shared == std::vector<std::pair<std::string, std::string>>{{"v", "w"}});
  CHECK_FALSE(states.file.stamp->empty());
}

TEST_CASE("Model states of ZeRO without what other stages have are read") {
  const TempDir temp;
  Items items = kModel;
  for (const char* key : {"module", "buffer_names", "frozen_param_shapes", "frozen_param_fragments", "shared_params"})
    items = with(items, key, kNone);
  items = with(items, "mp_world_size", "");
  const ZeroModelStates states = model_of(temp, items);
  CHECK(states.module.empty());
  CHECK(states.groups.size() == 2);
  CHECK(states.model_parallel_size == 1);
}

TEST_CASE("The optimizer's states of ZeRO are read with partitions and counts") {
  const TempDir temp;
  const ZeroOptimStates second = optim_of(temp, kOptim);
  CHECK(second.stage == 2);
  CHECK(second.partition_count == std::vector<std::uint64_t>{2});
  REQUIRE(second.masters.size() == 1);
  CHECK(second.masters[0].shape == Dims{12});
  CHECK(second.state.tensors == 1);
  CHECK(second.state.bytes == 48);
  REQUIRE(second.slices.size() == 1);
  CHECK(second.slices[0].at(0).count == 12);
  const ZeroOptimStates third = optim_of(temp, kOptim3);
  CHECK(third.stage == 3);
  CHECK(third.masters.size() == 2);
  CHECK(third.state.tensors == 1);
  // As CPython 3.11.0 to 3.11.3 pickles a member of an enum.
  const std::string member =
      call("builtins", "getattr", {global("deepspeed.runtime.zero.config", "ZeroStageEnum"), text("optimizer_states")});
  CHECK(optim_of(temp, with(kOptim, "zero_stage", member)).stage == 1);
  CHECK(optim_of(temp, with(kOptim, "param_slice_mappings", "")).slices.empty());
  CHECK(optim_of(temp, with(kOptim, "param_alignment_paddings", kNone)).partition_count.size() == 1);
}

TEST_CASE("Model states that are not of ZeRO's form are refused, with the key") {
  const TempDir temp;
  using Change = std::pair<std::string, std::string>;  // a key and its value
  check_each_refused<Change>(
      [&](const Change& change) { model_of(temp, with(kModel, change.first, change.second)); },
      {.path = temp / "file.pt"},
      {{{"module", number(1)}, "its \"module\" is an int, not a dict"},
       {{"module", dict({{"w", tensor()}, {"w", tensor()}})}, "is in \"module\" twice"},
       {{"param_shapes", dict({})}, "its \"param_shapes\" is a dict, not a list"},
       {{"param_shapes", list({dict({{"w", number(3)}})})}, "instead of a shape"},
       {{"param_shapes", list({dict({{"w", numbers({-1})}})})}, "instead of a shape"},
       {{"param_shapes", list({dict({{"w", numbers({1ll << 40, 1ll << 40})}})})}, "overflow 64 bits"},
       {{"param_shapes", list({dict({{"w", kSize34}}), dict({{"w", kSize34}})})}, "is in \"param_shapes\" twice"},
       {{"param_shapes", list({dict({{"f", kSize34}})})}, "is in \"param_shapes\" twice"},
       {{"param_shapes", list({dict({{"a\nb", kSize34}})})}, "control character"},
       {{"shared_params", dict({{"v", number(1)}})}, "not by a string"},
       {{"mp_world_size", text("1")}, "its \"mp_world_size\" is a string, not a whole number"}});
}

TEST_CASE("Optimizer states that are not of ZeRO's form are refused, with the key") {
  const TempDir temp;
  const auto address = [](const Items& state) {
    return object("deepspeed.utils.tensor_fragment", "fragment_address", dict(state));
  };
  const char* const partitions = "single_partition_of_fp32_groups";
  const char* const mappings = "param_slice_mappings";
  std::vector<std::pair<Items, Texts>> rows{
      {{}, "contains neither \"single_partition_of_fp32_groups\""},
      {with(kOptim3, partitions, list({})), "contains neither"},
      {with(kOptim3, "zero_stage", number(2)), "which does not fit its weights"},
      {with(kOptim, "partition_count", ""), "has no \"partition_count\""},
      {with(kOptim, "partition_count", list({text("2")})), "not a whole number"},
      {with(kOptim, partitions, list({tensor()})), "is F32 [3, 4], not a flat partition of weights"},
      {with(kOptim3, "fp32_flat_groups", list({number(1)})), "not a tensor"},
      {with(kOptim, partitions, list({tensor({.shape = {6}, .strides = {2}})})), "not a flat partition"},
      {with(kOptim, mappings, list({dict({{"w", address({{"start", number(0)}})}})})), "its \"numel\" is missing"},
      {with(kOptim, mappings, list({})), "its \"param_slice_mappings\" has 0 groups, but there are 1 partitions"},
      {with(kOptim3, "partition_count", list({})), "its \"partition_count\" is empty"},
      {with(kOptim, "param_alignment_paddings", list({list({number(-1)})})),
       "its \"param_alignment_paddings\" is an int, not a whole number"},
      {with(kOptim, "param_alignment_paddings", list({})),
       "its \"param_alignment_paddings\" has 0 groups, but there are 1 partitions"}};
  for (const std::string& stage : {number(0), number(3), number(4), text("2"), list({})})
    rows.emplace_back(with(kOptim, "zero_stage", stage), "which does not fit its weights");
  const std::string stateless = call("deepspeed.utils.tensor_fragment", "fragment_address", {});
  const std::string valid = address({{"numel", number(12)}, {"start", number(0)}});
  for (const std::string& value : {stateless, number(1), kNone})
    rows.push_back({with(kOptim, mappings, list({dict({{"v", valid}, {"w", value}})})),
                    {"its \"param_slice_mappings\" has ", ", not a fragment's position"}});
  for (const std::string& counts : {list({}), list({number(2), number(2)})})
    rows.push_back({with(kOptim, "partition_count", counts),
                    {"its \"partition_count\" has ", " groups, but there are 1 partitions"}});
  check_each_refused<Items>([&](const Items& items) { optim_of(temp, items); }, {.path = temp / "file.pt"}, rows);
  const auto tensor_of = [&](const Items& items) { return error_of([&] { optim_of(temp, items); }).tensor(); };
  CHECK(tensor_of(with(kOptim, partitions, list({tensor()}))) == "single_partition_of_fp32_groups[0]");
  CHECK(tensor_of(with(kOptim3, "fp32_flat_groups", list({number(1)}))) == "fp32_flat_groups[0]");
  CHECK(tensor_of(with(kOptim, mappings, list({dict({{"v", valid}, {"w", number(1)}})}))) == "w");
}

TEST_CASE("One name or dict that a file of ZeRO holds many times over is refused before it is copied") {
  const TempDir temp;
  const auto repeated = [](int count, const std::string& item) {
    std::string all;
    for (int i = 0; i < count; ++i) all += item;
    return all;
  };
  const std::string name = text(std::string(4096, 'n')) + "q\1";
  std::string pairs, others;
  for (int i = 0; i < 1000; ++i) pairs += text("v" + std::to_string(i)) + "h\1";
  for (int i = 0; i < 10000; ++i) others += number(i);
  // A dict of one long name, which all groups of parameters are, beside enough nodes for it.
  Items long_names = with(kModel, "param_shapes", "](}(" + name + kSize34 + "uq\2" + repeated(1000, "h\2") + "e");
  long_names.emplace_back("other", "](" + others + "e");
  const std::string group = dict({{"a", kSize34}, {"b", kSize34}, {"c", kSize34}, {"d", kSize34}}) + "q\1";
  check_each_refused<Items>(
      [&](const Items& items) { model_of(temp, items); }, {.path = temp / "file.pt"},
      {{with(kModel, "buffer_names", "](" + name + repeated(1000, "h\1") + "e"), "is in \"buffer_names\" twice"},
       {with(kModel, "buffer_names", list({number(1), number(1)})), "not by a string"},
       {with(kModel, "shared_params", "}(" + text("v") + name + pairs + "u"),
        "its \"shared_params\" contains the same names repeatedly"},
       {long_names, "is in \"param_shapes\" twice"},
       {with(kModel, "param_shapes", "](" + group + repeated(10000, "h\1") + "e"),
        "its \"param_shapes\" contains the same values repeatedly"}});
}

TEST_CASE("One dict of states that all of an optimizer's groups are is refused") {
  const TempDir temp;
  std::string inner, outer;
  for (int i = 0; i < 1000; ++i) inner += number(i) + number(i);
  const auto refused = [&](const std::string& shared) {
    const std::string state = "}(" + number(0) + shared + "q\1" + outer + "u";
    check_refused(
        [&] {
          optim_of(temp, with(kOptim, "base_optimizer_state", dict({{"state", state}})));
        },
        {.path = temp / "file.pt", .says = "its \"state\" contains the same values repeatedly"});
  };
  for (int i = 1; i < 1000; ++i) outer += number(i) + "h\1";
  refused("}(" + inner + "u");
  refused("ccollections\nOrderedDict\n](" + inner + "e\x85R");
}

TEST_CASE("The tensor of a parameter in a universal checkpoint is in a dict, or alone") {
  const TempDir temp;
  ContainerFile file;
  CHECK(read_zero_parameter(local_storage(), saved(temp, tensor()), file).shape == Dims{3, 4});
  const std::string in_dict = dict({{"cat_dim", number(0)}, {"param", tensor()}});
  CHECK(read_zero_parameter(local_storage(), saved(temp, in_dict), file).shape == Dims{3, 4});
  CHECK(file.path == temp / "file.pt");
  check_refused([&] { read_zero_parameter(local_storage(), saved(temp, dict({})), file); },
                {.says = "has no \"param\""});
}

}  // namespace
}  // namespace reshard::test
