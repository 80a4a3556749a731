#include "reshard/layouts/names/wrappers.h"

#include <catch2/catch.hpp>

namespace reshard::test {
namespace {

const std::vector<std::string> kWrapped{"model.embed_tokens.weight", "model.layers.0.self_attn.q_proj.weight",
                                        "lm_head.weight"};

std::vector<std::string> wrapped_in(const std::string& prefix) {
  std::vector<std::string> names = kWrapped;
  for (std::string& name : names) name.insert(0, prefix);
  return names;
}

TEST_CASE("A tensor whose name is the prefix of all others keeps it, and so do they") {
  const auto names_of = [](const std::vector<std::string>& names) {
    Container file;
    for (const std::string& name : names) file.tensors.push_back({.name = name, .dtype = DType::kU8, .shape = {1}});
    Notes notes;
    take_out_wrappers({&file, 1}, {nullptr}, notes);
    std::vector<std::string> left;
    for (const TensorEntry& tensor : file.tensors) left.push_back(tensor.name);
    return left;
  };
  std::vector<std::string> wrapped = wrapped_in("policy.");
  CHECK(names_of(wrapped) == kWrapped);
  wrapped.emplace_back("policy.");
  CHECK(names_of(wrapped) == wrapped);
  std::vector<std::string> adapter = wrapped_in("base_model.model.");  // that contains modules, too
  adapter.emplace_back("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
  CHECK(names_of(adapter) == adapter);
  adapter.emplace_back("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight");
  std::vector<std::string> bare = adapter;  // a model with an adapter in it
  for (std::string& name : bare) name.erase(0, std::string_view("base_model.model.").size());
  CHECK(names_of(adapter) == bare);
}

}  // namespace
}  // namespace reshard::test
