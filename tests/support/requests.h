#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "reshard/engine/execute.h"
#include "reshard/plan/job/request.h"
#include "support/files.h"
#include "support/models.h"

namespace reshard::test {

/// What tests ask for in requests, for designated initializers. Fields that are left out keep the request's defaults.
struct RequestFields {
  std::string layout{};  // by name
  std::optional<Format> format{};
  std::optional<std::uint32_t> tp{}, pp{};
  std::uint32_t vpp = 1;
  std::optional<std::uint32_t> ep{};
  std::vector<std::string> cuts{};
  std::vector<std::string> options{};  // of the layout: "pad" for a flag, else "kv-size-multiplier=2"
  std::optional<DType> dtype{};
  std::filesystem::path config{};  // of the source, as are the next three
  FamilySpec family{};
  std::vector<std::string> source_options{};
  bool with_optimizer = false;
  bool check_replicas = true;  // not of shard
  bool force = false;
};

/// Shards to layout ranks if no other is given, and in usual_format if no format is.
Request shard_request(const std::filesystem::path& model, const std::filesystem::path& output,
                      const RequestFields& fields);
Request convert_request(const std::filesystem::path& source, const std::filesystem::path& output,
                        const RequestFields& fields);
Request consolidate_request(const std::filesystem::path& source, const std::filesystem::path& output,
                            const RequestFields& fields = {});

/// The same requests, planned and executed.
RunResult shard(const std::filesystem::path& model, const std::filesystem::path& output, const RequestFields& fields);
RunResult convert(const std::filesystem::path& source, const std::filesystem::path& output,
                  const RequestFields& fields = {});

/// The tensors that convert or consolidate makes of `source`. The Hugging Face directory `output` is replaced.
TensorMap converted(const std::filesystem::path& source, const std::filesystem::path& output,
                    const RequestFields& fields = {});
TensorMap consolidated(const std::filesystem::path& source, const std::filesystem::path& output,
                       const RequestFields& fields);

/// All notes, each on a line.
std::string joined_notes(const Job& job);

}  // namespace reshard::test
