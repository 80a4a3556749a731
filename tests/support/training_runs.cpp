#include "support/training_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/layouts.h"

namespace reshard::test {

namespace fs = std::filesystem;

Request run_request(const fs::path& source, const fs::path& output, std::uint64_t fsdp, const std::string& prefix,
                    std::optional<std::uint32_t> tp) {
  Request request = convert_request(source, output);
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

namespace {

/// As torch.chunk has it: ceil(size / ranks) rows each, the last ones fewer or none.
std::vector<dcp::Part> chunks(const dcp::Part& part, std::size_t dim, std::uint64_t ranks) {
  std::vector<dcp::Part> parts;
  const std::uint64_t rows = (part.size[dim] + ranks - 1) / ranks;
  for (std::uint64_t rank = 0; rank < ranks; ++rank) {
    dcp::Part one = part;
    const std::uint64_t begin = std::min(rank * rows, part.size[dim]);
    one.begin[dim] += begin;
    one.size[dim] = std::min(rows, part.size[dim] - begin);
    one.rank = part.rank * static_cast<std::uint32_t>(ranks) + static_cast<std::uint32_t>(rank);
    parts.push_back(one);
  }
  return parts;
}

}  // namespace

std::vector<dcp::Part> random_parts(Random& random, const Dims& shape) {
  std::vector<dcp::Part> parts{{Dims(shape.size()), shape, static_cast<std::uint32_t>(pick(random, 0, 1))}};
  if (shape.empty()) return parts;
  for (std::uint64_t cuts = pick(random, 0, 2); cuts > 0; --cuts) {
    const std::size_t dim = pick(random, 0, shape.size() - 1);
    const std::uint64_t ranks = pick(random, 2, 4);
    std::vector<dcp::Part> all;
    for (const dcp::Part& part : parts)
      for (dcp::Part& one : chunks(part, dim, ranks)) all.push_back(std::move(one));
    parts = std::move(all);
  }
  // Of empty chunks that begin at one place, torch keeps one.
  std::erase_if(parts, [](const dcp::Part& part) { return std::count(part.size.begin(), part.size.end(), 0) > 0; });
  if (parts.empty()) parts = {{Dims(shape.size()), shape, 0}};
  std::shuffle(parts.begin(), parts.end(), random);
  return parts;
}

void check_chunks(const fs::path& directory, std::uint64_t ranks) {
  for (const DcpTensor& tensor : dcp::metadata_of(directory).tensors) {
    INFO(tensor.name);
    std::uint64_t elems = 0;
    for (const DcpChunk& chunk : tensor.chunks) {
      elems += volume(chunk.box);
      if (ranks == 0 || tensor.shape.empty()) continue;
      const std::uint64_t rows = (tensor.shape[0] + ranks - 1) / ranks;
      CHECK(chunk.box.begin[0] % rows == 0);
      CHECK(chunk.box.size[0] == std::min(rows, tensor.shape[0] - chunk.box.begin[0]));
    }
    CHECK(elems == num_elems(tensor.shape).value());
  }
}

void Saved::add(const std::string& name, const TensorData& data, std::uint64_t ranks) {
  tensors.push_back({name, data, row_parts(data.shape, ranks)});
}

void Saved::add_object(const std::string& name, const std::string& text, std::uint32_t rank) {
  objects.push_back({name, dcp::object_bytes(text), rank});
}

dcp::Whole& Saved::at(const std::string& name) {
  for (dcp::Whole& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::out_of_range("no tensor " + name);
}

void Saved::erase(const std::string& tensor) {
  std::erase_if(tensors, [&](const dcp::Whole& one) { return one.name == tensor; });
}

void Saved::write(const fs::path& directory) const {
  dcp::write(directory, tensors, objects, paths);
}

Saved small_run(Random& random, const std::string& prefix) {
  Saved saved;
  for (const char* name : {"a.weight", "b.weight"}) {
    saved.add(prefix + name, random_tensor(random, DType::kBF16, {4, 3}));
    saved.add(fmt::format("optim.state.{}.exp_avg", name), random_tensor(random, DType::kF32, {4, 3}));
  }
  saved.add_object("optim.param_groups.0.lr");
  return saved;
}

}  // namespace reshard::test
