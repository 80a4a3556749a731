#include "support/trained.h"

#include <string>
#include <utility>
#include <vector>

#include "support/dcp.h"
#include "support/dtensors.h"
#include "support/pickles.h"
#include "support/zero_files.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kRanks = 2;

/// What a rank has of a tensor: one of two parts along `dim`, or all of it.
dcp::Part part_on(const Dims& shape, std::uint64_t dim, std::uint64_t rank) {
  dcp::Part part{Dims(shape.size()), shape, static_cast<std::uint32_t>(rank)};
  if (shape.size() <= dim) return part;
  const std::uint64_t first = (shape[dim] + 1) / 2;
  part.begin[dim] = rank * first;
  part.size[dim] = rank == 0 ? first : shape[dim] - first;
  return part;
}

void write_dcp(const fs::path& directory, const TensorMap& tensors, std::uint64_t dim) {
  std::vector<dcp::Whole> stored;
  for (const auto& [name, data] : tensors) {
    stored.push_back({"model." + name, data, {part_on(data.shape, dim, 0)}});
    if (data.shape.size() > dim && data.shape[dim] > 1) stored.back().parts.push_back(part_on(data.shape, dim, 1));
  }
  dcp::write(directory, stored);
}

void write_fsdp(const fs::path& directory, const TensorMap& tensors, std::uint64_t dim) {
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
    SavedFile file;
    std::vector<std::pair<std::string, std::string>> items;
    for (const auto& [name, data] : tensors) {
      const auto [begin, size, number] = part_on(data.shape, dim, rank);
      const TensorData part{data.dtype, size, dcp::slice(data, begin, size)};
      const TestPlacement placement = data.shape.size() > dim ? TestPlacement{'S', dim} : TestPlacement{};
      items.emplace_back(name, pickled_dtensor(file, part, data.shape, {{kRanks}}, {rank}, {placement}));
    }
    file.save(directory / ("model_world_size_2_rank_" + std::to_string(rank) + ".pt"), pickles::dict(items));
  }
}

/// As float32.
TensorData widened(const TensorData& bf16) {
  TensorData wide{DType::kF32, bf16.shape, {}};
  for (std::size_t i = 0; i < bf16.bytes.size(); i += 2) wide.bytes += std::string(2, '\0') + bf16.bytes.substr(i, 2);
  return wide;
}

ZeroModel zero_model(const TensorMap& tensors) {
  ZeroModel model;
  model.groups.emplace_back();
  for (const auto& [name, data] : tensors) {
    model.module[name] = data;
    if (data.dtype != DType::kBF16) {
      model.buffers.push_back(name);
      continue;
    }
    model.groups[0].push_back(name);
    model.masters[name] = widened(data);
  }
  return model;
}

}  // namespace

void write_trained(const std::string& kind, const fs::path& directory, const TensorMap& tensors, std::uint64_t dim,
                   Random& random) {
  if (kind == "dcp") return write_dcp(directory, tensors, dim);
  if (kind == "fsdp-ranks") return write_fsdp(directory, tensors, dim);
  if (kind == "universal") return write_universal(directory, zero_model(tensors), 2, 3, random);
  write_zero(directory, zero_model(tensors), kind == "zero-2" ? 2 : 3, 3, 2, random);
}

}  // namespace reshard::test
