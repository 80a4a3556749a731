#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/plan/job/convert.h"
#include "support/dcp.h"
#include "support/random.h"

/// Checkpoints of training runs, of the model and of what lies beside it, by torch.distributed.checkpoint.
namespace reshard::test {

/// A run to dcp, with its optimizer.
ConvertRequest run_request(const std::filesystem::path& source, const std::filesystem::path& output, std::uint64_t fsdp,
                           const std::string& prefix = "", std::optional<std::uint32_t> tp = std::nullopt);

/// Rows are spread over this many ranks.
std::vector<dcp::Part> row_parts(const Dims& shape, std::uint64_t ranks);

/// A checkpoint in the making.
struct Saved {
  std::vector<dcp::Whole> tensors;
  std::vector<dcp::Object> objects;
  std::map<std::string, std::string> paths;  // pickled, where they are not the name alone

  void add(const std::string& name, const TensorData& data, std::uint64_t ranks = 2);
  void add_object(const std::string& name, const std::string& text = "x", std::uint32_t rank = 0);
  void write(const std::filesystem::path& directory) const;
};

/// Two parameters with moments, under "model.", and a group.
Saved small_run(Random& random);

}  // namespace reshard::test
