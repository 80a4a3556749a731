// Converts the output of `make_model --adam` to an NxD training checkpoint: the model on ranks, and AdamW's ZeRO-1
// states.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "reshard/engine/execute.h"
#include "reshard/io/open_store.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/core/layout.h"
#include "reshard/layouts/layout_table.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/job/job.h"
#include "reshard/plan/job/program.h"
#include "reshard/plan/transforms/derived.h"
#include "reshard/specs/config/model_config.h"

namespace {

namespace fs = std::filesystem;
using reshard::PlainValue;

struct Options {
  fs::path source;
  fs::path config;
  fs::path out_dir;
  std::uint32_t tp = 1;
  std::uint32_t pp = 1;
  std::uint64_t dp = 1;
};

constexpr const char* kStates = "optimizer.state.";

/// Moves the optimizer states among the tensors to `states`, with all parameters in one group. \returns the parameters.
std::vector<reshard::LogicalTensor> sort_out(reshard::SourceMap& all, reshard::TrainingStates& states) {
  std::vector<reshard::LogicalTensor> parameters;
  const std::string prefix = kStates;
  for (const std::string state : {"exp_avg", "exp_avg_sq"})
    states.paths.push_back({"optimizer", "state", std::string(1, reshard::kParameterMark), state});
  for (reshard::LogicalTensor& tensor : all.logical) {
    if (!tensor.name.starts_with(prefix)) {
      parameters.push_back(tensor);
      continue;
    }
    tensor.role = reshard::TensorRole::kState;
    const std::size_t dot = tensor.name.rfind('.');
    states.map.add_logical(tensor, {});
    states.of.push_back({prefix, tensor.name.substr(prefix.size(), dot - prefix.size()), tensor.name.substr(dot + 1),
                         false, tensor.name.ends_with("_sq") ? 1u : 0u});
  }
  reshard::OptimizerGroup& group = states.groups.emplace_back();
  group.values = {{"lr", PlainValue(1e-3)},
                  {"betas", PlainValue(PlainValue::List{PlainValue(0.9), PlainValue(0.95)})},
                  {"eps", PlainValue(1e-8)},
                  {"weight_decay", PlainValue(0.1)}};
  for (const reshard::LogicalTensor& parameter : parameters) {
    group.parameters.push_back(parameter.name);
    states.numbers.push_back({parameter.name, "step", PlainValue(std::int64_t{1000})});
  }
  return parameters;
}

void make_training(const Options& options) {
  reshard::Files& files = reshard::all_files();
  reshard::Checkpoint source = reshard::read_checkpoint(files, options.source, {});
  const reshard::Model model = reshard::instantiate(reshard::read_model_config(files, options.config));
  reshard::TrainingStates states;
  const std::vector<reshard::LogicalTensor> parameters = sort_out(source.map, states);

  reshard::TargetRequest request;
  request.layout = reshard::layout_named("nxd");
  request.tp = options.tp;
  request.pp = options.pp;
  request.options.set("dp", std::to_string(options.dp));
  reshard::TargetPlan plan = request.layout->plan(request, {.model = &model, .logical = parameters, .states = &states});
  reshard::Draft draft{std::move(source)};
  install_derived(draft, std::move(plan.derived), plan.map);

  reshard::Job job;
  job.command = "convert";
  job.source_directory = options.source;
  job.output_directory = options.out_dir;
  job.mesh = plan.mesh;
  job.layout = request.layout;
  job.text_files = std::move(plan.text_files);
  job.whole_folders = {request.layout->traits().folder};
  for (fs::path& folder : plan.whole_folders) job.whole_folders.push_back(std::move(folder));
  job.source = std::move(draft.source.map);
  job.target = std::move(plan.map);
  job.copied_files.push_back(
      {options.config / "config.json", "config.json", fs::file_size(options.config / "config.json")});
  job.program = reshard::make_program(job.source, job.target);
  const reshard::RunResult result = reshard::execute(job, {});
  fmt::print("{}: {} files, {:.1f} s\n", options.out_dir.string(), result.files, result.seconds);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Writes a training checkpoint of NxD, with AdamW's ZeRO-1 states and master weights."};
  Options options;
  app.add_option("STATES", options.source, "what make_model --adam wrote")->required()->check(CLI::ExistingDirectory);
  app.add_option("CONFIG", options.config, "the directory of its model's config.json")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("OUT_DIR", options.out_dir, "the new checkpoint's directory")->required();
  app.add_option("--tp", options.tp, "tensor-parallel ranks")->capture_default_str();
  app.add_option("--pp", options.pp, "pipeline ranks")->capture_default_str();
  app.add_option("--dp", options.dp, "data-parallel ranks")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  make_training(options);
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "make_training: {}\n", error.what());
  return 1;
}
