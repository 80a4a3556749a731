// Sources whose tensors are views: transposed, sliced, expanded, many in one storage.

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "reshard/engine/check/verify.h"
#include "reshard/layouts/core/checkpoint.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/fault_storage.h"
#include "support/local_files.h"
#include "support/pickles.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/trials.h"
#include "support/zips.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct StorageType {
  DType dtype;
  const char* name;
};
constexpr StorageType kTypes[] = {{DType::kBF16, "BFloat16Storage"}, {DType::kF32, "FloatStorage"},
                                  {DType::kU8, "ByteStorage"},       {DType::kF64, "DoubleStorage"},
                                  {DType::kBool, "BoolStorage"},     {DType::kC64, "ComplexFloatStorage"},
                                  {DType::kI16, "ShortStorage"}};

/// A torch file in the making, whose tensors are views of its storages.
class TorchViews {
 public:
  /// Adds a tensor whose element at `index` is element offset + Σ index × stride of storage `key`, which has been made
  /// large enough. `key` is the number of a storage of the same type, or of a new one.
  void add(const std::string& name, StorageType type, const Dims& shape, const Dims& strides, std::uint64_t offset,
           std::size_t key) {
    pickles::View view{type.name, std::to_string(key), 0, static_cast<std::int64_t>(offset), {}, {}};
    view.shape.assign(shape.begin(), shape.end());
    view.strides.assign(strides.begin(), strides.end());
    views_.push_back({name, view, type});
    TensorData tensor{type.dtype, shape, {}};
    const std::uint64_t bytes = bits(type.dtype) / 8;
    Dims index(shape.size());
    for (std::uint64_t i = 0, count = num_elems(shape).value(); i < count; ++i) {
      std::uint64_t at = offset;
      for (std::size_t d = 0; d < shape.size(); ++d) at += index[d] * strides[d];
      tensor.bytes.append(storages_.at(key), at * bytes, bytes);
      for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
    }
    tensors[name] = std::move(tensor);
  }

  std::size_t add_storage(std::string bytes) {
    storages_.push_back(std::move(bytes));
    return storages_.size() - 1;
  }
  std::uint64_t elems(StorageType type, std::size_t key) const {
    return storages_.at(key).size() / (bits(type.dtype) / 8);
  }
  void append(std::size_t key, const std::string& bytes) { storages_.at(key) += bytes; }

  void write(const fs::path& path) {
    std::vector<std::pair<std::string, std::string>> items;
    for (View& view : views_) {
      view.view.elems = static_cast<std::int64_t>(elems(view.type, std::stoul(view.view.key)));  // it may have grown
      items.emplace_back(view.name, pickles::tensor(view.view));
    }
    std::vector<ZipPart> parts;
    for (std::size_t key = 0; key < storages_.size(); ++key) parts.push_back({std::to_string(key), storages_[key]});
    write_file(path, torch_zip(pickles::stream(pickles::dict(items)), parts));
  }

  TensorMap tensors;  // what has been added, in C order

 private:
  struct View {
    std::string name;
    pickles::View view;
    StorageType type;
  };
  std::vector<View> views_;
  std::vector<std::string> storages_;
};

/// Strides in which the dims lie in any order, with gaps, and now and then one element for a whole dim.
Dims random_strides(Random& random, const Dims& shape) {
  std::vector<std::size_t> order(shape.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::shuffle(order.begin(), order.end(), random);
  Dims strides(shape.size());
  std::uint64_t stride = random() % 4 == 0 ? 2 : 1;
  for (const std::size_t d : order) {
    if (random() % 8 == 0) continue;
    strides[d] = stride;
    stride *= shape[d] + (random() % 4 == 0 ? pick(random, 1, 3) : 0);
  }
  return strides;
}

void add_random(TorchViews& file, Random& random, const std::string& name, StorageType type, const Dims& shape,
                std::map<DType, std::size_t>& shared) {
  const Dims strides = random() % 4 ? random_strides(random, shape) : c_strides(shape);
  std::uint64_t span = 1 + random() % 3;  // past the last element
  for (std::size_t d = 0; d < shape.size(); ++d) span += shape[d] ? (shape[d] - 1) * strides[d] : 0;
  const std::string bytes = random_tensor(random, type.dtype, {span}).bytes;
  std::size_t key = 0;
  std::uint64_t offset = 0;
  if (random() % 2 && shared.count(type.dtype)) {
    key = shared[type.dtype];
    offset = file.elems(type, key);
    file.append(key, bytes);
  } else {
    key = file.add_storage(bytes);
    shared[type.dtype] = key;
  }
  file.add(name, type, shape, strides, offset, key);
}

TEST_CASE("Views of any strides become C-ordered tensors in every form, in blocks of any size") {
  std::size_t strided = 0;
  for (const std::uint64_t seed : seeds(60)) {
    INFO("RESHARD_TEST_SEED=" << seed);
    Random random(seed);
    const TempDir temp;
    TinyModel model = random_model(random);
    model.tied = false;
    TorchViews file;
    std::map<DType, std::size_t> shared;
    std::map<std::string, StorageType> types;
    for (const TinyParameter& parameter : parameters_of(model)) {
      const StorageType type =
          types.emplace(joined_name(parameter.name), kTypes[random() % std::size(kTypes)]).first->second;
      add_random(file, random, parameter.name, type, parameter.shape, shared);
    }
    file.write(temp / "model/pytorch_model.bin");
    write_file(temp / "model/config.json", model.config().dump());

    FaultStorage storage;
    Request request = convert_request(temp / "model", temp / "whole");
    const auto job = plan_convert(request);
    for (const StoredTensor& stored : job->source.stored) strided += stored.is_c_order() ? 0 : 1;
    execute(*job, random_run(random, storage));
    CHECK((read_model(temp / "whole") == file.tensors));
    check_blocks(*job, temp / "blocks", one_of(random, {1, 16, 100, 1000}), 2);

    const OracleOptions mesh = legal_options(random, model);
    request = convert_request(temp / "model", temp / "shards", {.layout = "optimum"});
    set_target(request.target, mesh);
    const auto cut = plan_convert(request);
    execute(*cut, random_run(random, storage));
    CHECK((read_shards(temp / "shards") == expected_ranks(model, file.tensors, mesh)));
    check_blocks(*cut, temp / "cut", one_of(random, {1, 16, 100, 1000}), 2);

    const Checkpoint views = read_checkpoint(temp / "model", {ConfigUse::kLenient});
    const Checkpoint whole = read_checkpoint(temp / "whole", {ConfigUse::kLenient});
    CHECK(verify(views.map, whole.map, {}, random_run(random, storage)).same());
    CHECK(verify(whole.map, views.map, {}, random_run(random, storage)).same());
  }
  if (has_all_seeds()) CHECK(strided > 300);
}

TEST_CASE("Two names of one storage are two tensors of the same bytes, and a row of it a third") {
  TorchViews file;
  Random random(3);
  const StorageType type = kTypes[0];
  const std::size_t key = file.add_storage(random_tensor(random, type.dtype, {24}).bytes);
  file.add("embed", type, {4, 6}, {6, 1}, 0, key);
  file.add("head", type, {4, 6}, {6, 1}, 0, key);
  file.add("turned", type, {6, 4}, {1, 6}, 0, key);
  file.add("row", type, {6}, {1}, 12, key);
  file.add("one for all", type, {3, 5}, {0, 0}, 7, key);
  const TempDir temp;
  file.write(temp / "in/pytorch_model.bin");
  for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
    DYNAMIC_SECTION(name(format)) {
      convert(temp / "in", temp / "out", {.format = format});
      CHECK((read_whole(temp / "out") == file.tensors));
    }
  }
}

TEST_CASE("Large matrices in columns are turned in little memory, and read but once or twice") {
  for (const StorageType type : {kTypes[0], kTypes[1], kTypes[2]}) {
    DYNAMIC_SECTION(name(type.dtype)) {
      TorchViews file;
      Random random(5);
      const std::uint64_t rows = 2111;
      const std::uint64_t columns = 1531;
      const std::size_t key = file.add_storage(random_tensor(random, type.dtype, {rows * columns}).bytes);
      file.add("o_proj", type, {rows, columns}, {1, rows}, 0, key);
      const TempDir temp;
      file.write(temp / "in/pytorch_model.bin");
      for (const unsigned threads : {1u, 4u}) {
        for (const std::uint64_t memory : {kMinMemoryBytes, std::uint64_t{256} << 20}) {
          INFO(threads << " threads, " << memory << " bytes");
          FaultStorage storage;
          RunOptions options;
          options.stores = storage;
          options.threads = threads;
          options.max_memory_bytes = memory;
          const auto job = plan_convert(convert_request(temp / "in", temp / "out", {.force = true}));
          execute(*job, options);
          CHECK((read_model(temp / "out") == file.tensors));
          std::uint64_t bytes_read = 0;
          for (const FaultStorage::Range& range : storage.reads(job->source.files[0].path))
            bytes_read += range.end_bytes - range.begin_bytes;
          CHECK(bytes_read <= 2 * file.tensors.at("o_proj").bytes.size());
        }
      }
    }
  }
}

}  // namespace
}  // namespace reshard::test
