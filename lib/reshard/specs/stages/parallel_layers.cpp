#include "reshard/specs/stages/parallel_layers.h"

namespace reshard {
namespace {

/// Adds the parameters of each layer.
class Parameters {
 public:
  explicit Parameters(std::uint32_t tp) : tp_(tp) {}

  void operator()(const ColumnParallelLinear& layer) {
    add_split(layer.name + ".weight", 0, layer.stride);
    if (layer.bias) add_split(layer.name + ".bias", 0, layer.stride);
  }

  void operator()(const RowParallelLinear& layer) {
    add_split(layer.name + ".weight", 1);
    if (layer.bias) add_whole(layer.name + ".bias");
  }

  void operator()(const ParallelEmbedding& layer) { add_split(layer.name + ".weight", layer.across_embedding ? 1 : 0); }

  void operator()(const GQAQKVColumnParallelLinear& layer) {
    const std::string name = layer.module + "." + layer.spec.gqa_qkv_projection_name;
    for (const char* leaf : {".weight", ".bias"}) {
      if (leaf == std::string(".bias") && !layer.spec.bias) break;
      if (layer.spec.fuse_qkv) {
        add_whole(name + leaf + "_qkv");  // like NxD, although it is split: the spec takes precedence
        continue;
      }
      for (const char* projection : {"_q", "_k", "_v"}) add_split(name + leaf + projection, 0);
    }
  }

  void operator()(const ReplicatedLayer& layer) {
    add_whole(layer.name + ".weight");
    if (layer.bias) add_whole(layer.name + ".bias");
  }

  std::vector<ParallelParameter> take() { return std::move(parameters_); }

 private:
  void add_split(std::string name, std::uint32_t dim, std::uint32_t stride = 1) {
    parameters_.push_back({std::move(name), true, dim, stride, tp_, {}});
  }
  void add_whole(std::string name) { parameters_.push_back({std::move(name), false, 0, 1, 1, {}}); }

  std::uint32_t tp_;
  std::vector<ParallelParameter> parameters_;
};

}  // namespace

std::vector<ParallelParameter> parallel_parameters(const std::vector<ParallelLayer>& layers, std::uint32_t tp) {
  Parameters parameters(tp);
  for (const ParallelLayer& layer : layers) std::visit(parameters, layer);
  return parameters.take();
}

}  // namespace reshard
