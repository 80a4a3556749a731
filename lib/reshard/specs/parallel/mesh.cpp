#include "reshard/specs/parallel/mesh.h"

#include <fmt/format.h>

#include <algorithm>

#include "reshard/base/error.h"
#include "reshard/base/strings.h"

namespace reshard {

void validate_mesh(const Mesh& mesh) {
  const std::pair<const char*, std::uint32_t> degrees[] = {
      {"`tp`", mesh.tp}, {"`pp`", mesh.pp}, {"`vpp`", mesh.vpp}, {"`ep`", mesh.ep}};
  for (const auto& [option, degree] : degrees)
    if (degree == 0 || degree > kMaxParallelDegree)
      throw Error(ErrorKind::kUsage,
                  fmt::format("{} {} is not a number from 1 to {}", option, degree, kMaxParallelDegree));
}

std::uint32_t PipelinePartition::stage_of(std::uint64_t layer) const {
  const auto after = std::upper_bound(first.begin(), first.end(), layer);
  return static_cast<std::uint32_t>(after - first.begin() - 1);
}

std::vector<std::uint64_t> PipelinePartition::cuts() const {
  std::vector<std::uint64_t> last_layers;
  for (std::size_t s = 1; s + 1 < first.size(); ++s) last_layers.push_back(first[s] - 1);
  return last_layers;
}

PipelinePartition partition_evenly(std::uint64_t layers, const Mesh& mesh) {
  const std::uint64_t stages = mesh.stages();
  if (layers == 0 && stages > 1)
    throw Error(ErrorKind::kUsage, fmt::format("the model has no stack of layers to spread over {} pipeline stages "
                                               "(`pp` {} × `vpp` {})",
                                               stages, mesh.pp, mesh.vpp))
        .hint("leave out `pp` and `vpp`, or describe the model with `spec` and \"layers\"");
  if (stages > std::max<std::uint64_t>(layers, 1))
    throw Error(ErrorKind::kUsage, fmt::format("the model has {} layers, fewer than the {} pipeline stages asked for "
                                               "(`pp` {} × `vpp` {})",
                                               layers, stages, mesh.pp, mesh.vpp))
        .hint(fmt::format("use at most {} stages", layers));
  PipelinePartition partition{mesh.pp, {0}};
  const std::uint64_t longer = layers % stages;
  for (std::uint64_t s = 0; s < stages; ++s)
    partition.first.push_back(partition.first.back() + layers / stages + (s >= stages - longer ? 1 : 0));
  return partition;
}

PipelinePartition partition_by_cuts(std::uint64_t layers, const Mesh& mesh, const std::vector<std::string>& cuts,
                                    const std::string& layer_prefix) {
  const auto fail = [](const std::string& message, const std::string& hint) -> Error {
    return Error(ErrorKind::kUsage, "`pipeline-cuts`: " + message).hint(hint);
  };
  if (cuts.size() + 1 != mesh.stages())
    throw fail(fmt::format("{} cuts make {} stages, but `pp` {} × `vpp` {} asks for {}", cuts.size(), cuts.size() + 1,
                           mesh.pp, mesh.vpp, mesh.stages()),
               fmt::format("give {} cut{}", mesh.stages() - 1, mesh.stages() == 2 ? "" : "s"));
  if (layers == 0)
    throw fail("the model has no stack of layers to cut",
               "leave it out, or describe the model with `spec` and \"layers\"");
  PipelinePartition partition{mesh.pp, {0}};
  for (const std::string& cut : cuts) {
    const bool prefixed = cut.size() > layer_prefix.size() + 1 && cut.starts_with(layer_prefix + ".");
    const auto layer = prefixed ? parse_unsigned(std::string_view(cut).substr(layer_prefix.size() + 1)) : std::nullopt;
    if (!layer)
      throw fail(fmt::format("\"{}\" is not a layer of this model", printable(cut)),
                 fmt::format("a cut names the last layer of a stage, such as {}.{}", layer_prefix, layers / 2));
    if (layers < 2 || *layer > layers - 2)
      throw fail(
          fmt::format("{} leaves no layer for the stage after it; the model has {} layers", printable(cut), layers),
          fmt::format("the last cut can be {}.{}", layer_prefix, layers < 2 ? 0 : layers - 2));
    if (*layer + 1 <= partition.first.back())
      throw fail(fmt::format("{} does not come after the cut before it", printable(cut)),
                 "give the cuts in layer order");
    partition.first.push_back(*layer + 1);
  }
  partition.first.push_back(layers);
  return partition;
}

}  // namespace reshard
