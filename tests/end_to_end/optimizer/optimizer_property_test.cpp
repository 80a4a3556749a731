// The optimizer of a training run from one mesh and layout to another, against slices that the test makes itself.

#include <fmt/format.h>

#include "reshard/base/strings.h"
#include "support/checkpoints.h"
#include "support/layouts.h"
#include "support/local_files.h"
#include "support/optimizer_oracle.h"
#include "support/refusals.h"
#include "support/requests.h"
#include "support/temp_dir.h"
#include "support/trials.h"

namespace reshard::test {
namespace {

namespace fs = std::filesystem;

struct Target {
  const Layout* layout = nullptr;
  Format format = Format::kPytorch;
  OracleOptions mesh;
  std::uint64_t dp = 1;
};

bool has_option(const Layout* layout, const std::string& name) {
  const auto options = layout->options();
  return std::any_of(options.begin(), options.end(), [&](const LayoutOption* one) { return one->name == name; });
}

/// A mesh of any layout of ranks that has a place for states.
Target random_target(Random& random, const TinyModel& model) {
  std::vector<const Layout*> of_ranks;
  for (const Layout* one : layouts())
    if (one->traits().writes_states && !one->traits().needs_no_mesh) of_ranks.push_back(one);
  Target target;
  target.layout = of_ranks[pick(random, 0, of_ranks.size() - 1)];
  const auto formats = target.layout->traits().formats;
  target.format = formats[pick(random, 0, formats.size() - 1)];
  target.mesh = legal_options(random, model);
  if (has_option(target.layout, "qkv-linear")) choose_qkv_linear(random, model, target.mesh);
  target.dp = pick(random, 1, 5);
  return target;
}

ConvertRequest request_of(const fs::path& source, const fs::path& output, const Target& target) {
  ConvertRequest request = convert_request(source, output);
  request.source.with_optimizer = true;
  request.target.layout = target.layout;
  request.target.format = target.format;
  set_target(request.target, target.mesh);
  request.target.options.set_number("dp", target.dp);
  return request;
}

void check_written(const fs::path& output, const TrainingRun& run, const Target& target) {
  // Next to the optimizer's folder is that of the model, which some layouts have in one of their own.
  const fs::path folder = fs::exists(output / "model") ? output : output / target.layout->traits().folder;
  check_saved_trees(folder / "optim", expected_optimizer(run, target.mesh, target.dp, folder / "model"));
  for (const char* marker : {"checkpoint", "done"}) CHECK(read_file(folder / marker) == "1");
}

TEST_CASE("A target has the groups of the rule that it is asked for, with the hyperparameters that parameters had") {
  for (const std::uint64_t seed : seeds(20)) {
    CAPTURE(seed);
    Random random(seed);
    const TrainingRun run = random_training(random, random_model(random));
    const Target target = random_target(random, run.model);
    const bool is_flat = random() % 2;
    CAPTURE(target.layout->traits().name, target.mesh.tp, target.mesh.pp, target.dp, run.model.tied, run.has_two_groups,
            is_flat);
    const TempDir temp;
    write_dcp(temp / "dcp", run, random, is_flat);
    write_file(temp / "dcp/config.json", run.model.config().dump());
    ConvertRequest request = request_of(temp / "dcp", temp / "out", target);
    const auto says = [&](const char* text) {
      return join(plan_convert(request)->notes, "\n").find(text) != std::string::npos;
    };
    CHECK(says("the source has hyperparameters by parameter") == is_flat);
    request.target.options.set("optimizer-groups", "norms");
    convert(request);
    check_written(temp / "out", grouped_by_rule(run), target);
    request.output_directory = temp / "noted";
    CHECK(says("parameter groups where the source has 1") == !run.has_two_groups);
    CHECK(!says("the source has hyperparameters by parameter"));
    if (!run.has_two_groups) continue;
    request.output_directory = temp / "one";
    request.target.options.set("optimizer-groups", "one");
    const Error error = check_refused(
        [&] { convert(request); },
        {.kind = ErrorKind::kUnsupported, .says = "by rule one it is in one group with", .unwritten = temp / "one"});
    CHECK(!error.hint().empty());
  }
}

/// Replaces the optimizer's files of `target` in `directory` by what NxD saves through torch.distributed.checkpoint, of
/// as many data-parallel ranks as can all have rows.
void save_through_dcp(const fs::path& directory, const TrainingRun& run, const Target& target, Random& random) {
  NxdDcpForm form{pick(random, 1, 4), random() % 2 == 0, random() % 2 == 0, false};
  const auto have_rows = [&](const Saved& saved) {
    return std::all_of(saved.tensors.begin(), saved.tensors.end(), [&](const dcp::Whole& tensor) {
      return tensor.data.shape.empty() || tensor.parts.size() == form.dp;
    });
  };
  Saved saved = nxd_dcp(run, target.mesh, form, directory / "model");
  for (; !have_rows(saved); saved = nxd_dcp(run, target.mesh, form, directory / "model")) --form.dp;
  fs::remove_all(directory / "optim");
  saved.write(directory / "optim");
}

TEST_CASE("States go from any mesh, layout and format to any other, and come back through DCP as they were") {
  for (const std::uint64_t seed : seeds(110)) {
    CAPTURE(seed);
    Random random(seed);
    const bool is_dcp = pick(random, 0, 2) == 0;  // as NxD saves it with use_zero1_dcp
    const TinyModel model = random_model(random);
    const TrainingRun run = is_dcp ? one_group(random, model) : random_training(random, model);
    Target first = random_target(random, run.model), second = random_target(random, run.model);
    if (is_dcp && first.layout != layout("nxd")) {
      first = {layout("nxd"), Format::kPytorch, first.mesh, first.dp};
      choose_qkv_linear(random, run.model, first.mesh);
    }
    ask_for_kept_form(run.model, first.mesh, second.mesh);
    CAPTURE(first.layout->traits().name, first.mesh.tp, first.mesh.pp, first.mesh.vpp, first.dp);
    CAPTURE(second.layout->traits().name, second.mesh.tp, second.mesh.pp, second.mesh.vpp, second.dp, run.model.tied);
    CAPTURE(run.model.heads, run.model.kv_heads, first.mesh.kv_size_multiplier, first.mesh.qkv_linear,
            first.mesh.fuse_qkv, second.mesh.kv_size_multiplier, second.mesh.qkv_linear, second.mesh.fuse_qkv);
    const TempDir temp;
    write_dcp(temp / "dcp", run, random, random() % 2);
    write_file(temp / "dcp/config.json", run.model.config().dump());
    convert(request_of(temp / "dcp", temp / "first", first));
    const auto with_multiplier = [&](ConvertRequest request) {
      if (first.mesh.kv_size_multiplier != 0 && has_option(first.layout, "qkv-linear"))
        request.source.options.set_number("kv-size-multiplier", first.mesh.kv_size_multiplier);
      return request;
    };
    check_written(temp / "first", run, first);
    const auto as_written = snapshot(temp / "first");
    if (is_dcp) save_through_dcp(temp / "first", run, first, random);
    convert(with_multiplier(request_of(temp / "first", temp / "second", second)));
    check_written(temp / "second", run, second);
    if (run.states.count("master") > 0) continue;  // which torch's optimizers do not have

    ConvertRequest to_dcp =
        with_multiplier(convert_request(temp / "first", temp / "dcp2", {.layout = "dcp", .with_optimizer = true}));
    to_dcp.target.options.set_number("fsdp", pick(random, 1, 3));
    convert(to_dcp);
    const dcp::Content content = dcp::read(temp / "dcp2");
    for (const auto& [state, of] : run.states)
      for (const auto& [name, data] : of)
        CHECK((content.tensors.at(fmt::format("optimizer.state.{}.{}", name, state)) == data));
    CHECK(content.tensors.size() >= run.states.size() * run.states.at("step").size() + run.weights.size());
    convert(request_of(temp / "dcp2", temp / "again", first));
    CHECK(snapshot(temp / "again") == as_written);
  }
}

}  // namespace
}  // namespace reshard::test
