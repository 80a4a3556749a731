#include "support/saved_file.h"

#include "support/pickles.h"

namespace reshard::test {
namespace {

const char* storage_type(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "FloatStorage";
    case DType::kF64: return "DoubleStorage";
    case DType::kBF16: return "BFloat16Storage";
    default: return "LongStorage";
  }
}

}  // namespace

std::string SavedFile::tensor(const TensorData& data) {
  pickles::View view{storage_type(data.dtype), std::to_string(storages_.size()), 0, 0, {}, {}};
  view.elems = static_cast<std::int64_t>(data.bytes.size() / (bits(data.dtype) / 8));
  for (const std::uint64_t size : data.shape) view.shape.push_back(static_cast<std::int64_t>(size));
  for (const std::uint64_t stride : c_strides(data.shape)) view.strides.push_back(static_cast<std::int64_t>(stride));
  storages_.push_back({std::to_string(storages_.size()), data.bytes});
  return pickles::tensor(view);
}

std::string SavedFile::flat(DType dtype, const std::string& bytes) {
  return tensor({dtype, {bytes.size() / (bits(dtype) / 8)}, bytes});
}

void SavedFile::save(const std::filesystem::path& path, const std::string& root) const {
  write_file(path, torch_zip(pickles::stream(root), storages_));
}

std::string pickled_size(const Dims& shape) {
  std::vector<std::int64_t> numbers;
  for (const std::uint64_t size : shape) numbers.push_back(static_cast<std::int64_t>(size));
  return pickles::call("torch", "Size", {pickles::numbers(numbers)});
}

}  // namespace reshard::test
