#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reshard/plan/job/job.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/models.h"
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
      const std::string name(reshard::name(format));
      ShardRequest request = shard_request(temp / "model", temp / ("shards-" + name), 4, 2);
      request.target.format = format;
      shard(request);
      planners.emplace_back("shard to " + name, [request](const std::filesystem::path& output) {
        ShardRequest there = request;
        there.output_directory = output;
        return plan_shard(there);
      });
    }
    for (const Format format : {Format::kSafetensors, Format::kPytorch}) {
      const std::string name(reshard::name(format));
      planners.emplace_back("consolidate to " + name, [this, format](const std::filesystem::path& output) {
        ConsolidateRequest request;
        request.source.path = temp / "shards-xser";
        request.output_directory = output;
        request.target.format = format;
        request.target.options.set_number("max-shard-size", 3000);
        return plan_consolidate(request);
      });
    }
    for (const Format format : {Format::kPytorch, Format::kXser}) {
      const std::string name(reshard::name(format));
      planners.emplace_back("convert to " + name, [this, format](const std::filesystem::path& output) {
        ConvertRequest request = convert_request(temp / "shards-safetensors", output);
        request.target.layout = layout("optimum");
        request.target.format = format;
        request.target.tp = 2;
        request.target.pp = 1;
        request.dtype = DType::kF32;
        return plan_convert(request);
      });
    }
    for (const char* name : {"nxd", "nxdi", "presharded", "vllm"})
      planners.emplace_back(std::string("shard to ") + name, [this, name](const std::filesystem::path& output) {
        return plan_shard(deployed_request(layout(name), temp / "model", output, 2));
      });
  }

  TempDir temp;
  std::vector<std::pair<std::string, Planner>> planners;
};

}  // namespace reshard::test
