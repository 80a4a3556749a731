#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reshard/plan/plan.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/requests.h"
#include "support/temp_dir.h"

namespace reshard::test {

using Planner = std::function<std::unique_ptr<Job>(const std::filesystem::path& output)>;

/// Jobs of every command and format, and of every layout of ranks, over one model.
struct Jobs {
  Jobs() {
    TinyModel model;
    model.heads = 8;
    model.kv_heads = 4;
    model.tied = true;
    Random random(17);
    write_model(temp / "model", model, random_tensors(model, random), 2);
    for (const Format format : {Format::kSafetensors, Format::kPytorch, Format::kXser}) {
      Request request = shard_request(temp / "model", temp / ("shards-" + std::string(name(format))), 4, 2);
      request.target.format = format;
      shard(request);
      add("shard to ", format, [request](const std::filesystem::path& directory) {
        Request there = request;
        there.output_directory = directory;
        return plan_shard(there);
      });
    }
    for (const Format format : {Format::kSafetensors, Format::kPytorch})
      add("consolidate to ", format, [this, format](const std::filesystem::path& directory) {
        Request request = consolidate_request(temp / "shards-xser", directory);
        request.target.format = format;
        request.target.options.set_number("max-shard-size", 3000);
        return plan_consolidate(request);
      });
    for (const Format format : {Format::kPytorch, Format::kXser})
      add("convert to ", format, [this, format](const std::filesystem::path& directory) {
        Request request = convert_request(temp / "shards-safetensors", directory);
        request.target.layout = layout("optimum");
        request.target.format = format;
        request.target.tp = 2;
        request.target.pp = 1;
        request.dtype = DType::kF32;
        return plan_convert(request);
      });
    for (const char* name : {"nxd", "nxdi", "presharded", "vllm"})
      planners.emplace_back(std::string("shard to ") + name, [this, name](const std::filesystem::path& directory) {
        return plan_shard(deployed_request(layout(name), temp / "model", directory, 2));
      });
    planners.emplace_back(kTransposed, [this](const std::filesystem::path& directory) {
      Request request = deployed_request(layout("nxdi"), temp / "model", directory, 2);
      request.target.options.set("kernels", "qkv,mlp,out-proj");
      request.target.options.set_flag("fuse-qkv", true);
      return plan_shard(request);
    });
    REQUIRE(planners.size() == kCount);
  }
  void add(const std::string& what, Format format, const Planner& planner) {
    planners.emplace_back(what + std::string(name(format)), planner);
  }
  /// The job of the first planner.
  std::unique_ptr<Job> plan() const { return planners.front().second(output); }

  static constexpr std::size_t kCount = 12;
  static constexpr const char* kTransposed = "shard to transposed matrices";
  TempDir temp;
  std::filesystem::path output = temp / "out";
  std::vector<std::pair<std::string, Planner>> planners;
};

/// What `job` writes, which is removed again.
inline std::map<std::string, std::string> written_by(const Job& job) {
  execute(job, unsynced());
  auto files = snapshot(job.output_directory);
  std::filesystem::remove_all(job.output_directory);
  return files;
}

}  // namespace reshard::test
