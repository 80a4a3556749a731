// Every architecture of testdata/architectures is planned in every layout, with every program's names and behind the
// prefixes that trainers have; the planned files are made in memory, without elements, and read back by their names.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reshard/io/memory_files.h"
#include "reshard/layouts/core/checkpoint.h"
#include "reshard/layouts/map/target_file.h"
#include "reshard/layouts/read_checkpoint.h"
#include "reshard/plan/plan.h"
#include "support/architectures.h"
#include "support/catch.h"
#include "support/checkpoints.h"
#include "support/errors.h"
#include "support/layouts.h"
#include "support/models.h"

namespace reshard::test {
namespace {

/// A model of zeros in memory, under /model.
void write_zeros(MemoryFiles& files, const Architecture& of) {
  TensorMap tensors;
  for (const auto& [name, facts] : of.facts.at("tensors").items()) {
    const DType dtype = dtype_from_name(facts.at(0).get<std::string>()).value();
    const Dims shape = facts.at(1).get<Dims>();
    tensors[name] = {dtype, shape, std::string(num_bytes(dtype, shape).value(), '\0')};
  }
  files.write("/model/config.json", of.facts.at("config").dump());
  files.write("/model/model.safetensors", safetensors_bytes(tensors));
}

/// Makes the outputs of a job under /out, with zeros for elements.
void write_outputs(MemoryFiles& files, const Job& job) {
  for (const TargetFile& file : job.target.files) {
    std::string content(file.size_bytes, '\0');
    for (const FilePart& part : target_parts(job.target, file))
      content.replace(part.offset_bytes, part.bytes.size(), part.bytes);
    files.write("/out" / file.path, std::move(content));
  }
  for (const TextFile& file : job.text_files) files.write("/out" / file.path, file.text);
  for (const CopiedFile& file : job.copied_files) {
    const auto source = files.open(file.source);
    std::string content(source->size_bytes(), '\0');
    source->read_at(0, std::as_writable_bytes(std::span(content)));
    files.write("/out" / file.path, std::move(content));
  }
}

using Tensors = std::map<std::string, std::pair<DType, Dims>>;

Tensors tensors_of(const reshard::SourceMap& map) {
  Tensors tensors;
  for (const LogicalTensor& tensor : map.logical)
    if (!tensor.constant()) tensors.emplace(tensor.name, std::pair(tensor.dtype, tensor.shape));
  return tensors;
}

/// What was read back, against the source.
void check_same(const Checkpoint& found, const Checkpoint& source) {
  const Tensors expected = tensors_of(source.map);
  Tensors tensors = tensors_of(found.map);
  if (!found.model)  // config.json alone says that they are tied
    for (const ModelParameter& parameter : source.model->parameters)
      if (!parameter.tied_to.empty()) tensors.erase(parameter.name);
  CHECK(tensors.size() == expected.size());
  for (const auto& [name, tensor] : expected) {
    CAPTURE(name);
    CHECK((tensors.count(name) == 1 && tensors.at(name) == tensor));
  }
}

/// Plans, writes and reads back. \returns why the request is refused; empty if it is not.
/// \param compares  whether all tensors come back as they were.
std::string read_back(MemoryFiles& files, const Request& request, bool compares = true) {
  files.remove("/out");
  try {
    write_outputs(files, *plan_convert(files, request));
  } catch (const Error& error) {
    REQUIRE((error.kind() == ErrorKind::kUsage || error.kind() == ErrorKind::kUnsupported));
    return error.what();
  }
  const Checkpoint source = read_checkpoint(files, "/model", {ConfigUse::kStrict});
  const Checkpoint found = read_checkpoint(files, "/out", {ConfigUse::kStrict});
  if (!compares) return {};
  check_same(found, source);
  if (!request.target.layout->traits().needs_no_mesh() || request.target.options.has("names")) return {};
  files.remove("/out/config.json");
  check_same(read_checkpoint(files, "/out", {}), source);
  return {};
}

/// One architecture, and whether trial number `i` of it is among those of RESHARD_TEST_SHARE.
struct Trial {
  std::size_t index = 0;
  Architecture of;
  bool takes(std::size_t i, std::size_t count) const {
    return (i + index) % std::min<std::uint64_t>(share_of_trials(), count) == 0;
  }
};

Trial any_architecture() {
  const std::vector<std::string> names = sample_of(architecture_names());
  const std::size_t index = GENERATE_COPY(range(std::size_t{0}, names.size()));
  return {index, architecture(names[index])};
}

Request dcp_request(const std::string& names, const std::string& prefix) {
  Request request = convert_request("/model", "/out");
  request.target.layout = layout("dcp");
  if (!names.empty()) request.target.options.set("names", names);
  if (!prefix.empty()) request.target.options.set("prefix", prefix);
  return request;
}

TEST_CASE("The names of every architecture come back from dcp, behind any prefix and from any program's names") {
  const Trial trial = any_architecture();
  MemoryFiles files;
  write_zeros(files, trial.of);
  const auto family = builtin_family(trial.of.facts.at("model_type").get<std::string>());
  const bool is_translated = trial.of.name == "llama" || trial.of.name == "qwen3";
  const std::vector<std::string> prefixes{"model", "", "module", "state_dict.model", "app.model"};
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    if (!is_translated && !trial.takes(i, prefixes.size())) continue;
    CAPTURE(trial.of.name, prefixes[i]);
    CHECK(read_back(files, dcp_request({}, prefixes[i])) == "");
    if (!family || family->schemes.empty()) continue;
    for (const char* names : {"torchtitan", "torchtitan-0.2"}) {
      const std::string refused = read_back(files, dcp_request(names, prefixes[i]));
      if (is_translated) CHECK(refused == "");
    }
  }
}

TEST_CASE("A few names that are those of another family by chance do not hide a larger model from dcp") {
  const Architecture of = architecture("qwen3_5");  // its mtp.fc and mtp.norm are names of llama_eagle
  MemoryFiles files;
  write_zeros(files, of);
  CHECK(read_back(files, dcp_request({}, {})) == "");
}

TEST_CASE("A prefix from behind which a larger model would not come back is refused with the name that it would get") {
  for (const char* name : {"deepseek_vl_v2", "qwen3_omni_moe"}) {
    MemoryFiles files;
    write_zeros(files, architecture(name));
    const Error error = error_of([&] { plan_convert(files, dcp_request({}, "ema")); });
    CHECK(error.kind() == ErrorKind::kUsage);
    CHECK_FALSE(error.tensor().empty());
    CHECK_THAT(error.what(), Says("`prefix` ema.: ema."));
    CHECK_THAT(error.what(), Says("would be read under the name ema."));
  }
}

TEST_CASE("The names of every architecture come back from every layout of ranks") {
  const Trial trial = any_architecture();
  MemoryFiles files;
  write_zeros(files, trial.of);
  const std::string& model = trial.of.name;
  const bool is_served = model == "llama" || model == "mistral" || model == "qwen2" || model == "qwen3";
  for (std::size_t i = 0; i < layouts().size(); ++i) {
    const Layout* to = layouts()[i];
    const bool is_taken = is_served || trial.takes(i, layouts().size());
    if (!to->traits().is_written() || to->traits().needs_no_mesh() || !is_taken) continue;
    CAPTURE(trial.of.name, to->traits().name);
    Request request = convert_request("/model", "/out");
    request.target.layout = to;
    if (to->traits().has_ranks()) request.target.tp = std::min<std::uint32_t>(2, largest_tp(trial.of));
    // Servers know few models, and have only their language models, dequantised.
    const bool is_same = is_served || !to->traits().casts_to_config_dtype;
    const std::string refused = read_back(files, request, is_same);
    const bool has_nxd_names = !has_experts(trial.of) || model == "mixtral" || model == "dbrx";
    if (to == layout("nxd") && !has_nxd_names)
      CHECK_THAT(refused, Says("NxD's names and shapes for the experts of "));
    else if (is_same)
      CHECK(refused == "");
  }
}

}  // namespace
}  // namespace reshard::test
