#include "support/training_runs.h"

#include <fmt/format.h>

#include <algorithm>

#include "support/checkpoints.h"
#include "support/layouts.h"

namespace reshard::test {

namespace fs = std::filesystem;

ConvertRequest run_request(const fs::path& source, const fs::path& output, std::uint64_t fsdp,
                           const std::string& prefix, std::optional<std::uint32_t> tp) {
  ConvertRequest request = convert_request(source, output);
  request.source.with_optimizer = true;
  request.target.layout = layout("dcp");
  request.target.tp = tp;
  request.target.options.set_number("fsdp", fsdp);
  if (!prefix.empty()) request.target.options.set("prefix", prefix);
  return request;
}

std::vector<dcp::Part> row_parts(const Dims& shape, std::uint64_t ranks) {
  if (shape.empty() || shape[0] == 0) return {{Dims(shape.size()), shape, 0}};
  std::vector<dcp::Part> parts;
  const std::uint64_t rows = (shape[0] + ranks - 1) / ranks;
  for (std::uint64_t begin = 0; begin < shape[0]; begin += rows) {
    dcp::Part part{Dims(shape.size()), shape, static_cast<std::uint32_t>(begin / rows)};
    part.begin[0] = begin;
    part.size[0] = std::min(rows, shape[0] - begin);
    parts.push_back(part);
  }
  return parts;
}

void Saved::add(const std::string& name, const TensorData& data, std::uint64_t ranks) {
  tensors.push_back({name, data, row_parts(data.shape, ranks)});
}

void Saved::add_object(const std::string& name, const std::string& text, std::uint32_t rank) {
  objects.push_back({name, dcp::object_bytes(text), rank});
}

void Saved::write(const fs::path& directory) const {
  dcp::write(directory, tensors, objects, paths);
}

Saved small_run(Random& random) {
  Saved saved;
  for (const char* name : {"a.weight", "b.weight"}) {
    saved.add(std::string("model.") + name, random_tensor(random, DType::kBF16, {4, 3}));
    saved.add(fmt::format("optim.state.{}.exp_avg", name), random_tensor(random, DType::kF32, {4, 3}));
  }
  saved.add_object("optim.param_groups.0.lr");
  return saved;
}

}  // namespace reshard::test
