#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reshard/plan/job/request.h"
#include "support/dcp.h"
#include "support/random.h"

/// Checkpoints of training runs, of the model and of what lies beside it, by torch.distributed.checkpoint.
namespace reshard::test {

/// A run to dcp, with its optimizer.
Request run_request(const std::filesystem::path& source, const std::filesystem::path& output, std::uint64_t fsdp,
                    const std::string& prefix = "", std::optional<std::uint32_t> tp = std::nullopt);

/// Rows are spread over this many ranks.
std::vector<dcp::Part> row_parts(const Dims& shape, std::uint64_t ranks);

/// A mesh of one or two dims, or boxes of any sizes, in no order.
std::vector<dcp::Part> random_parts(Random& random, const Dims& shape);

/// CHECKs that the chunks of every tensor of a directory have as many elements as it, and those of as many rows as
/// FSDP gives each of `ranks`, unless that is 0.
void check_chunks(const std::filesystem::path& directory, std::uint64_t ranks);

/// A checkpoint in the making.
struct Saved {
  std::vector<dcp::Whole> tensors;
  std::vector<dcp::Object> objects;
  std::map<std::string, std::string> paths;  // pickled, where they are not the name alone

  void add(const std::string& name, const TensorData& data, std::uint64_t ranks = 2);
  void add_object(const std::string& name, const std::string& text = "x", std::uint32_t rank = 0);
  /// The tensor of that name.
  dcp::Whole& at(const std::string& name);
  void erase(const std::string& tensor);
  void write(const std::filesystem::path& directory) const;
};

/// Two parameters with moments, behind a prefix that the optimizer's names lack, and a group.
Saved small_run(Random& random, const std::string& prefix = "model.");

}  // namespace reshard::test
